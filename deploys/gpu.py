"""Driver and container toolkit alone: `pyinfra inventories/prod.py deploys/gpu.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.gpu import gpu_kept_step, gpu_step

here.send_at_once()
gpu_step()
gpu_kept_step()
