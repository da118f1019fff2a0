"""Start the cluster as it lies on the hosts: `pyinfra INVENTORY deploys/start.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.generations import finished_step
from vllm_cluster.steps.order import start_again_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
finished_step()  # one left open would undo what follows, when this run ends
start_again_step()
