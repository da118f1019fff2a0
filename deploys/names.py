"""Names alone: `pyinfra inventories/prod.py deploys/names.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.names import names_step

here.send_at_once()
names_step()
