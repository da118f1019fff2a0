"""A spare host made ready and left idle: `pyinfra --limit HOST INVENTORY deploys/standby.py`.

All of cluster.py but what runs: system, GPUs, Docker, image and weights (docs/head.md).
"""

from vllm_cluster.steps import here
from vllm_cluster.steps.docker import docker_step
from vllm_cluster.steps.files import base_step
from vllm_cluster.steps.firewall import firewall_step
from vllm_cluster.steps.generations import finished_step
from vllm_cluster.steps.gpu import gpu_step
from vllm_cluster.steps.image import image_step
from vllm_cluster.steps.kernel import kernel_step
from vllm_cluster.steps.names import names_step
from vllm_cluster.steps.network import card_step
from vllm_cluster.steps.run_lock import lock_step
from vllm_cluster.steps.storage import disks_step, shares_step
from vllm_cluster.steps.weights import weights_step

here.send_at_once()
lock_step(file=__file__)
finished_step()  # a host that serves goes on letting in whom it serves
names_step()
card_step()
disks_step()
base_step()
kernel_step()
firewall_step()
shares_step()
gpu_step()
docker_step()
image_step()
weights_step()
