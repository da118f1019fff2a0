"""The firewall alone: `pyinfra inventories/prod.py deploys/firewall.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.firewall import firewall_step
from vllm_cluster.steps.generations import inspected_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
inspected_step()  # what serves is not shut out: cluster.py moves roles, and closes behind them
firewall_step()
