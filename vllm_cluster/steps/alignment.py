"""One table over all hosts; what differs stops the run before anything is started or stopped."""

from __future__ import annotations

from pathlib import Path

from pyinfra.api.deploy import deploy
from pyinfra.context import host

from vllm_cluster.control import pinned
from vllm_cluster.operations import alignment
from vllm_cluster.operations.alignment import Asked
from vllm_cluster.plan.alignment import Expected
from vllm_cluster.plan.pins import HostPins
from vllm_cluster.steps import here


@deploy("Alignment")
def align_step(show: bool = False) -> None:
    """Compare all hosts. `--data align_json=FILE` writes the table to a file of this machine."""
    file = host.data.get("align_json")
    asked = _asked()
    alignment.inspected(name="Ask every host what must be equal on all", asked=asked)
    alignment.agreed(
        name="Let the hosts agree before anything is started",
        asked=asked,
        expected=_expected,
        locked=_locked(),
        show=show,
        file=Path(file) if file else None,
    )


def _asked() -> dict[str, Asked]:
    plan, locked = here.plan(), _locked()
    return {
        name: Asked(
            plan.image,
            plan.weights.manifest,
            other.address,
            plan.accelerator == "nvidia",
            name in locked,
        )
        for name, other in plan.hosts.items()
    }


def _locked() -> dict[str, HostPins]:
    pins = pinned.read(here.known().cluster)
    return {} if pins is None else dict(pins.hosts)


def _expected() -> Expected:
    known = here.known()
    plan = known.plan
    return Expected(
        head=plan.head,
        gpus={name: other.gpus for name, other in plan.hosts.items()},
        nvidia=plan.accelerator == "nvidia",
        # A pulled image is named by its registry's digest, which is not its ID.
        image=plan.image if known.archive else "",
        vllm=plan.vllm_version,
        ray=plan.ray_version if plan.backend == "ray" else "",
        manifest=plan.weights.identity,
        gpu_model=known.cluster.description.gpu.model,
    )
