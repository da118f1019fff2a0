"""The image with vLLM and Ray alone: `pyinfra INVENTORY deploys/image.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.image import image_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
image_step()
