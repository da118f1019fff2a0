"""The image with vLLM and Ray alone: `pyinfra INVENTORY deploys/image.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.image import image_step

here.send_at_once()
image_step()
