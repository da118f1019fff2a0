"""The kernel and the clocks alone: `pyinfra inventories/prod.py deploys/kernel.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.kernel import kernel_step

here.send_at_once()
kernel_step()
