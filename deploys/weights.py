"""The weights alone: `pyinfra INVENTORY deploys/weights.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.run_lock import lock_step
from vllm_cluster.steps.weights import weights_step

here.send_at_once()
lock_step(file=__file__)
weights_step()
