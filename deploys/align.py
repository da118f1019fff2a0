"""The alignment table over all hosts: `pyinfra inventories/prod.py deploys/align.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.alignment import align_step

here.send_at_once()
align_step(show=True)
