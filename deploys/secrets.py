"""Ray token and API key alone; deploys/cluster.py also starts Ray and vLLM anew with them."""

from vllm_cluster.steps import here
from vllm_cluster.steps.run_lock import lock_step
from vllm_cluster.steps.secrets import former_secrets_step, secrets_step

here.send_at_once()
lock_step(file=__file__)
secrets_step()
former_secrets_step()
