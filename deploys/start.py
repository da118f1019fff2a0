"""Start the cluster as it lies on the hosts: `pyinfra INVENTORY deploys/start.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.order import start_again_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
start_again_step()
