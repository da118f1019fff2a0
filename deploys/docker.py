"""Docker alone: `pyinfra inventories/prod.py deploys/docker.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.docker import docker_step
from vllm_cluster.steps.generations import finished_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
finished_step()  # one left open would be undone by a restart of Ray on its host
docker_step()
