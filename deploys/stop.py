"""Stop the cluster in order: vLLM, workers, head: `pyinfra INVENTORY deploys/stop.py`."""

from pyinfra.context import host

from vllm_cluster.steps import here
from vllm_cluster.steps.generations import finished_step
from vllm_cluster.steps.order import stop_step
from vllm_cluster.steps.run_lock import lock_step

here.send_at_once()
lock_step(file=__file__)
finished_step()  # one left open would undo what follows, when this run ends
stop_step(keep_down=host.data.get("keep_down") == "yes")
