"""Network cards and paths alone: `pyinfra inventories/prod.py deploys/network.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.network import card_step, paths_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
card_step()
paths_step()
