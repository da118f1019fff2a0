"""Back to an earlier generation: `pyinfra INVENTORY deploys/rollback.py [--data to=N]`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.generations import rollback_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
rollback_step()
