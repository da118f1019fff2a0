"""The firewall alone: `pyinfra inventories/prod.py deploys/firewall.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.firewall import firewall_step

here.send_at_once()
firewall_step()
