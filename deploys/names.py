"""Names alone: `pyinfra inventories/prod.py deploys/names.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.names import names_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
names_step()
