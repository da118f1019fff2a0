"""Stop the cluster in order and start it again: `pyinfra INVENTORY deploys/restart.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.generations import finished_step
from vllm_cluster.steps.order import restart_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
finished_step()  # one left open would undo what follows, when this run ends
restart_step()
