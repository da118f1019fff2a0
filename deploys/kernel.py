"""The kernel and the clocks alone: `pyinfra inventories/prod.py deploys/kernel.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.kernel import kernel_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
kernel_step()
