"""Disks and network shares: `pyinfra inventories/prod.py deploys/storage.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.run_lock import lock_step
from vllm_cluster.steps.storage import disks_step, shares_step

here.send_at_once()
lock_step(file=__file__)
disks_step()
shares_step()
