"""Another generation of the units in the place of the one that serves, and the way back."""

from __future__ import annotations

import time
from typing import Any

from pyinfra.api.deploy import deploy
from pyinfra.context import host

from vllm_cluster.control.bearer import bearer
from vllm_cluster.operations import arguments, generations
from vllm_cluster.operations.arguments import Check
from vllm_cluster.operations.switching import Switch
from vllm_cluster.plan import paths
from vllm_cluster.plan.containers import VLLM
from vllm_cluster.steps import configs, here, serving

# What a head that goes back takes beside the drain: its lock is free after 60 s of silence, its
# units end 60 s later than they should at most, and a Ray worker ends within a minute of its head.
_BACK_S = 300


@deploy("Unfinished switch")
def finished_step() -> None:
    """Finish a switch that was cut off.

    Before any unit stops or starts: by that, a host that has accepted would tell that its head went
    back, and would go back itself as soon as this run ends.
    """
    generations.inspected(name="Look at the generations that this host keeps")
    generations.finished(name="Finish a switch that was cut off")


@deploy("Generations")
def known_step() -> None:
    """Finish a switch that was cut off; refuse what failed before, unless asked to retry."""
    finished_step()
    generations.allowed(
        name="Try nothing again that failed, unless asked", identity=_identity, retry=_retry()
    )


@deploy("Kept generations")
def inspected_step() -> None:
    """Learn what serves; whom the firewall lets in follows from it while a role moves."""
    generations.inspected(name="Look at the generations that this host keeps")


@deploy("Switch")
def switch_step() -> None:
    """Check the new generation while the old one serves, switch, judge, go back if it fails."""
    env = serving.environment_text()
    generations.allowed(
        name="Try nothing again that failed, with what is known now",
        identity=_identity,
        retry=_retry(),
    )
    generations.laid(
        name="Keep the files of this generation",
        identity=_identity,
        files=lambda: serving.wanted_files(env),
    )
    arguments.accepted(name="Let vLLM in the image judge its arguments", check=_check)
    generations.switched(
        name="Switch to this generation",
        switch=lambda: _switch(_identity()),
        address=here.this().address,
    )


@deploy("Kept generation")
def keep_step() -> None:
    """Remember what serves, as the way back of the next switch."""
    generations.recorded(name="Keep what serves", identity=_identity, record=_record)


@deploy("Rollback")
def rollback_step() -> None:
    """Go back to the generation before, or to `--data to=N`."""
    finished_step()
    number = host.data.get("to")
    me = bearer("")
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    generations.returned(
        name="Go back to an earlier generation",
        switch=lambda: _switch(""),
        number=None if number is None else int(number),
        note=f"rolled back by {me.operator} on {me.machine}, {when}",
        address=here.this().address,
    )


def _identity() -> str:
    known = here.known()
    return configs.generation(known.plan, known.secrets)


def _retry() -> bool:
    return bool(host.data.get("retry") == "yes")


def _check() -> Check:
    plan, identity = here.plan(), _identity()
    return Check(
        identity=identity,
        container=plan.hosts[plan.head].containers[VLLM],
        environment=f"{paths.GENERATIONS}/{identity}/files{paths.ENVIRONMENT}",
        secrets=paths.IN_SECRETS,
    )


def _record() -> dict[str, Any]:
    plan = here.plan()
    return {
        "image": plan.image,
        "model": plan.model_path,
        "vllm": plan.vllm_version,
        "ray": plan.ray_version,
        "head": plan.head,
        "hosts": list(plan.hosts),
        "units": {name: list(each.units) for name, each in plan.hosts.items()},
        "group": plan.backend == "ray",
        "gpus": plan.gpus,
    }


def _switch(identity: str) -> Switch:
    plan, upgrade = here.plan(), here.known().cluster.description.upgrade
    return Switch(
        to=identity,
        record=_record(),
        head=plan.head,
        units={name: each.units for name, each in plan.hosts.items()},
        group=plan.backend == "ray",
        gpus=plan.gpus,
        measure_s=upgrade.measure_s,
        measure_requests=upgrade.measure_requests,
        slower_percent=upgrade.slower_percent,
        join_timeout_s=upgrade.join_timeout_s,
        start_timeout_s=plan.start_timeout_s,
        undone_s=plan.shutdown_timeout_s + plan.drain_timeout_s + _BACK_S,
        keep=upgrade.keep,
    )
