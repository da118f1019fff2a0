"""Docker alone: `pyinfra inventories/prod.py deploys/docker.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.docker import docker_step

here.send_at_once()
docker_step()
