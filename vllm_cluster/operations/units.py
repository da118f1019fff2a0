"""systemd units: loaded, enabled, running, and running what is configured now."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.units import UnitState, UnitStates
from vllm_cluster.operations import owned
from vllm_cluster.operations.files import MARK
from vllm_cluster.operations.its_log import or_its_log
from vllm_cluster.operations.progress import starting
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.operations.served import VLLM, say_served
from vllm_cluster.plan import paths

Commands = Generator[StringCommand, None, None]


@dataclass(frozen=True)
class Unit:
    """A unit as it shall be.

    `container` and `config`: the container that it runs and the configuration's digest; the unit
    is restarted while the running one carries another. `files`: read only at start; the unit is
    restarted while one of them is newer than its start. `started_from`: the digest that the unit
    notes of its files at its start; it is restarted while that is another, so what somebody edited
    and started does not outlive the file. All hold across an interrupted run, which a "changed in
    this run" would not.
    `wait` False starts it without waiting until it is active.
    """

    name: str
    container: str = ""
    config: str = ""
    files: tuple[str, ...] = ()
    started_from: str = ""
    wait: bool = True
    verb: str = "restart"


Units = list[Unit] | Callable[[], list[Unit]]


@operation()
def active(units: Units, serves: str = "") -> Generator[StringCommand, None, None]:
    """Bring `units`, in their order, to enabled and running with today's configuration.

    `units` may be asked for when the operation runs: a configuration may follow from earlier ones.
    `serves`: the address where vLLM answers once it is started, which is said at the end.
    """
    units = units() if callable(units) else units
    have = _read(units)
    steps = [(unit, why) for unit in units if (why := _why(unit, have[unit.name]))]
    idle = [unit.name for unit in units if have[unit.name].file_state == "disabled"]
    reload = any(have[unit.name].need_reload for unit in units)
    masked = [unit.name for unit in units if have[unit.name].load == "masked"]
    if masked:
        name = masked[0]
        yield refuse(f"{name} is masked; run `systemctl unmask {name}` if that was not meant")
        return
    if not steps and not idle and not reload:
        host.noop(f"{', '.join(unit.name for unit in units)}: running as configured")
        return
    for unit, why in steps:
        host.log(f"{unit.name}: {why}")
    recorded = [_recorded(name, have[name]) for name in {*idle, *(unit.name for unit, _ in steps)}]
    yield StringCommand("\n".join([owned.SHELL, *recorded, "systemctl daemon-reload"]))
    if idle:
        yield StringCommand("systemctl enable --quiet", *idle)
    for unit, _ in steps:
        if unit.container:
            # A deploy is a person's will: no pause, and all the starts that a unit has.
            yield StringCommand(f"{paths.SCRIPTS}/attempt held {unit.name}")
        elif have[unit.name].active == "failed":
            # A unit that gave up stays so, whatever is started, until its counter is reset.
            yield StringCommand("systemctl reset-failed", unit.name)
        began_s = time.monotonic()
        with starting(unit.name) if unit.wait else nullcontext():
            yield _start(unit, have[unit.name])
        if unit.name == VLLM:
            say_served(serves, began_s)


@operation()
def ended(units: Units, former: list[Unit]) -> Generator[StringCommand, None, None]:
    """Stop those of `units`, in their order, whose container runs another configuration.

    `former` are units of roles that this host has no more: stopped, disabled and removed, where
    they are ours. First on every host, then the new ones start: a worker that finds the old head
    still up would join a session that is about to end.
    """
    units = units() if callable(units) else units
    have = _read([*former, *units], mark=MARK)
    retired = [u for u in former if have[u.name].ours or have[u.name].config]
    old = [u for u in units if _older(u, have[u.name])]
    if not old and not retired:
        host.noop("nothing runs an older configuration or a former role")
        return
    yield from _retired(retired)
    for unit in old:
        host.log(f"{unit.name}: {_older(unit, have[unit.name])}")
    if old:
        yield StringCommand("systemctl daemon-reload")
        yield StringCommand("systemctl stop", *[unit.name for unit in old])


def _retired(units: list[Unit]) -> Commands:
    """Stop and disable, then remove the files that carry our mark, drop-ins too.

    In this order and in one command: cut off in between, the next run finds the file and goes on.
    A container of ours outlives its unit where somebody took the file away.
    """
    for unit in units:
        host.log(f"{unit.name}: of a role that this host has no more; stopped and removed")
    for unit in units:
        path = f"{paths.UNITS}/{unit.name}"
        yield StringCommand(
            f"{{ [ ! -e {path} ] || systemctl --quiet disable --now {unit.name}; }} && "
            f"{{ systemctl --quiet stop vllm-cluster-watch@{unit.container}.service || true; "
            f"docker rm --force {unit.container} >/dev/null 2>&1 || true; "
            f"for to in any open; do {paths.SCRIPTS}/door $to || true; done; "
            f"rm -f {paths.UNITS_STATE}/{unit.container}.*; }} && "
            f"{{ grep -lsF '{MARK}' {path}.d/*.conf {path} | xargs -r rm -f; "
            f"rmdir {path}.d 2>/dev/null || true; }} && systemctl daemon-reload && "
            f"{{ systemctl reset-failed {unit.name} 2>/dev/null || true; }}"
        )


def _recorded(name: str, found: UnitState) -> str:
    return f"own unit {name} '{found.file_state or '-'} {found.active}'"


def _read(units: list[Unit], mark: str = "") -> dict[str, UnitState]:
    return host.get_fact(
        UnitStates,
        units=[unit.name for unit in units],
        containers={unit.name: unit.container for unit in units if unit.container},
        files={unit.name: list(unit.files) for unit in units if unit.files},
        mark=mark,
    )


def _why(unit: Unit, found: UnitState) -> str:
    """Why `unit` must be started or restarted; empty when it need not."""
    if found.active in {"inactive", "failed"}:
        return f"is {found.active}"
    if _waits(unit, found):
        return "waits, perhaps for what an older configuration names"
    if older := _older(unit, found):
        return older
    if found.active == "activating" and unit.wait:
        return "is still starting"
    if found.newer_files:
        return f"started before {', '.join(found.newer_files)} changed"
    return ""


def _older(unit: Unit, found: UnitState) -> str:
    """Why what runs, or starts, is another than it shall be; empty when it is not."""
    if unit.container and found.config and found.config != unit.config:
        return "runs an older configuration"
    noted = found.started_from if found.active in {"active", "activating"} else ""
    if unit.started_from and noted and noted != unit.started_from:
        return "was started from files that somebody had changed"
    return ""


def _waits(unit: Unit, found: UnitState) -> bool:
    """Whether the unit is before its container: nothing tells for which head, or how many GPUs."""
    return bool(unit.container) and found.active == "activating" and not found.config


def _start(unit: Unit, found: UnitState) -> StringCommand:
    stale = found.active == "active" or _older(unit, found) or _waits(unit, found)
    verb = unit.verb if stale else "start"
    if unit.wait:
        return StringCommand(or_its_log(verb, unit.name))
    return StringCommand("systemctl", verb, "--no-block", unit.name)
