"""Stop and start in order: vLLM ends first, then the workers, then the head; and back.

A worker that lost its head would end by itself within a minute, and vLLM with it, in the middle
of its answers.
"""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import order
from vllm_cluster.steps import here


@deploy("Stop")
def stop_step(keep_down: bool = False) -> None:
    """Stop the cluster. Running requests may finish, within serve.shutdown_timeout_s."""
    _look(needed=False)
    _stop(keep_down=keep_down)


@deploy("Start")
def start_again_step() -> None:
    """Start the cluster as it lies on the hosts; it has started when a completion came back."""
    _look(needed=True)
    _start()


@deploy("Restart")
def restart_step() -> None:
    """Stop and start; where each host serves alone, one after the other, so that others answer."""
    _look(needed=True)
    if here.plan().backend == "mp":
        order.restarted(
            name="Restart vLLM, host by host", units=_ours("vllm"), serves=_serves(), _serial=True
        )
        return
    _stop()
    _start()


def _look(*, needed: bool) -> None:
    units = [f"{unit}.service" for unit in here.this().units]
    order.looked(name="Look what is deployed", units=units, needed=needed)


def _stop(*, keep_down: bool = False) -> None:
    limit_s = here.plan().shutdown_timeout_s
    order.stopped(
        name=f"Stop vLLM; what it has begun may take {limit_s} s",
        units=_ours("vllm"),
        keep_down=keep_down,
    )
    order.stopped(name="Stop Ray's workers", units=_ours("ray-worker"), keep_down=keep_down)
    order.stopped(name="Stop Ray's head", units=_ours("ray-head"), keep_down=keep_down)


def _start() -> None:
    order.started(name="Start Ray's head", units=_ours("ray-head"))
    # A worker waits for its head, and vLLM for every worker: only vLLM is waited for.
    order.started(name="Start Ray's workers", units=_ours("ray-worker"), wait=False)
    order.started(
        name="Start vLLM and wait for a completion", units=_ours("vllm"), serves=_serves()
    )


def _ours(unit: str) -> list[str]:
    return [f"{unit}.service"] if unit in here.this().units else []


def _serves() -> str:
    """Where vLLM of this host answers; empty where it has none."""
    return here.this().address if "vllm" in here.this().units else ""
