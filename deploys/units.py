"""The units of Ray and vLLM alone: `pyinfra INVENTORY deploys/units.py`."""

from vllm_cluster.steps import here
from vllm_cluster.steps.generations import keep_step, known_step, switch_step
from vllm_cluster.steps.run_lock import lock_step
from vllm_cluster.steps.secrets import former_secrets_step
from vllm_cluster.steps.serving import start_step, units_step

here.send_at_once()
lock_step(file=__file__)
known_step()
switch_step()
units_step()
former_secrets_step()
start_step()
keep_step()
