"""Driver and container toolkit alone: `pyinfra inventories/prod.py deploys/gpu.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.generations import finished_step
from vllm_cluster.steps.gpu import gpu_kept_step, gpu_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
finished_step()  # one left open would be undone by a restart of Ray on its host
gpu_step()
gpu_kept_step()
