"""The weights alone: `pyinfra INVENTORY deploys/weights.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.weights import weights_step

here.send_at_once()
weights_step()
