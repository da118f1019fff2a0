"""The whole cluster, in order: `pyinfra inventories/prod.py deploys/cluster.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.alignment import align_step
from vllm_cluster.steps.docker import docker_step
from vllm_cluster.steps.files import base_step
from vllm_cluster.steps.fingerprint import fingerprint_step
from vllm_cluster.steps.firewall import firewall_step, former_firewall_step
from vllm_cluster.steps.generations import keep_step, known_step, switch_step
from vllm_cluster.steps.gpu import gpu_kept_step, gpu_step
from vllm_cluster.steps.image import image_step
from vllm_cluster.steps.kernel import kernel_step
from vllm_cluster.steps.names import names_step
from vllm_cluster.steps.network import card_step, paths_step
from vllm_cluster.steps.run_lock import lock_step
from vllm_cluster.steps.secrets import former_secrets_step, secrets_step
from vllm_cluster.steps.serving import start_step, units_step
from vllm_cluster.steps.storage import disks_step, shares_step
from vllm_cluster.steps.weights import weights_step

here.send_at_once()
lock_step(file=__file__)
known_step()  # what failed before is not tried again unasked
names_step()
card_step()
disks_step()  # before anything is written beneath a mount point
base_step()
kernel_step()  # keeps our ports free before anything dials
firewall_step()  # closed before anything listens; open to what still serves
paths_step()  # what the firewalls let through, before anything needs it
shares_step()
gpu_step()  # Docker does not start with a runtime that is not there
docker_step()
image_step()
weights_step()
secrets_step()
align_step()  # before anything that runs is stopped or started
switch_step()  # all hosts to another generation and back, where another one serves
units_step()
former_secrets_step()  # what read them has ended
start_step()
keep_step()
former_firewall_step()  # what was reached through it has ended
gpu_kept_step()
fingerprint_step()  # of the host as this run leaves it
