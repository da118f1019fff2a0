"""Units stopped and started as they are: no file is written, nothing is compared with the plan."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator
from contextlib import nullcontext
from weakref import WeakKeyDictionary

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.facts.units import UnitState, UnitStates
from vllm_cluster.operations.its_log import or_its_log
from vllm_cluster.operations.progress import starting
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.operations.served import say_served
from vllm_cluster.plan import paths

_DOWN = ("inactive", "failed")
# The host of a run whose restart has begun and not come to its end.
_under_way: WeakKeyDictionary[State, str] = WeakKeyDictionary()
# Whether a host of a run has any of the units that it shall have.
_deployed: WeakKeyDictionary[State, dict[str, bool]] = WeakKeyDictionary()
_BARE = "nothing is deployed here yet; `pyinfra INVENTORY deploys/cluster.py` deploys"


@operation()
def looked(units: list[str], needed: bool) -> Generator[StringCommand, None, None]:
    """Look which of `units` there are, before anything stops. `needed`: refuse without them."""
    have = _read(units)
    there = any(have[unit].load != "not-found" for unit in units)
    _deployed.setdefault(host.state, {})[host.name] = there
    reason = _missing(units, have) if needed else ""
    if reason:
        yield refuse(reason if there else _BARE)
        return
    host.noop("the units are there" if there else "nothing is deployed here yet")


def _bare(state: State) -> bool:
    """Whether no host of the run has anything of ours."""
    found = _deployed.get(state, {})
    return bool(found) and not any(found.values())


@operation()
def stopped(units: list[str], keep_down: bool = False) -> Generator[StringCommand, None, None]:
    """Stop `units` and wait until they have ended. `keep_down`: no reboot starts them either.

    A host on which they are not has nothing to stop, unless no host has anything.
    """
    if _bare(host.state):
        yield refuse(_BARE)
        return
    have = _read(units)
    units = [unit for unit in units if have[unit].load != "not-found"]
    reason = _missing(units, have)
    if reason:
        yield refuse(reason)
        return
    running = [unit for unit in units if have[unit].active not in _DOWN]
    enabled = [unit for unit in units if have[unit].file_state == "enabled" and keep_down]
    if not running and not enabled:
        host.noop(f"{', '.join(units) or 'no unit of this kind'}: not running")
        return
    if enabled:
        yield StringCommand("systemctl disable --quiet", *enabled)
    yield from _stop(running)


@operation()
def started(
    units: list[str], wait: bool = True, serves: str = ""
) -> Generator[StringCommand, None, None]:
    """Start `units`, and let a reboot start them too. `wait` until they are active.

    `serves`: the address where vLLM, one of them, answers then, which is said at the end.
    """
    have = _read(units, containers=True)
    reason = _missing(units, have)
    if reason:
        yield refuse(reason)
        return
    idle = [unit for unit in units if have[unit].file_state == "disabled"]
    # What is before its container may be in a pause: a start would join it, a restart ends it.
    pausing = [u for u in units if have[u].active == "activating" and not have[u].config]
    # Who is to wait for a unit that is still starting joins its start.
    joined = ("activating",) if wait else ()
    down = [u for u in units if have[u].active in (*_DOWN, *joined) or u in pausing]
    if not idle and not down:
        host.noop(f"{', '.join(units) or 'no unit of this kind'}: running")
        say_served(serves)
        return
    began_s = time.monotonic()
    if idle:
        yield StringCommand("systemctl enable --quiet", *idle)
    yield from _start(down, wait=wait, anew=pausing)
    say_served(serves, began_s)


@operation()
def restarted(units: list[str], serves: str = "") -> Generator[StringCommand, None, None]:
    """Stop `units` and start them again, active at the end; hosts take turns. `serves` as above.

    After a host where that failed no other begins: with a common cause all would go down.
    """
    failed = _under_way.get(host.state, host.name)
    if failed != host.name:
        yield refuse(f"the restart of {failed} failed, so this host is left as it is")
        return
    if host.state.is_executing:
        _under_way[host.state] = host.name
    reason = _missing(units, _read(units))
    if reason:
        yield refuse(reason)
        return
    yield from _stop(units)
    began_s = time.monotonic()
    yield from _start(units, wait=True)
    say_served(serves, began_s)
    # Not reached where a command failed: pyinfra asks for no more of them.
    _under_way.pop(host.state, None)


def _stop(units: list[str]) -> Generator[StringCommand, None, None]:
    if units:
        host.log(f"{', '.join(units)}: stops")
        yield StringCommand("systemctl stop", *units)
        # vLLM that is ended while it starts ends with 137, to systemd a failure: it was none.
        yield StringCommand("systemctl reset-failed", *units, "2>/dev/null || true")


def _start(
    units: list[str], *, wait: bool, anew: Collection[str] = ()
) -> Generator[StringCommand, None, None]:
    block = "" if wait else "--no-block"
    for unit in units:
        host.log(f"{unit}: starts")
        # A person's will: a unit that gave up begins anew, and none pauses for what failed before.
        yield StringCommand(f"{paths.SCRIPTS}/attempt held {unit} 2>/dev/null || true")
        verb = "restart" if unit in anew else "start"
        with starting(unit) if wait else nullcontext():
            yield StringCommand(or_its_log(verb, unit, block))


def _missing(units: list[str], have: dict[str, UnitState]) -> str:
    bad = [unit for unit in units if have[unit].load != "loaded"]
    return f"{', '.join(bad)} is {have[bad[0]].load}; deploys/cluster.py makes it" if bad else ""


def _read(units: list[str], *, containers: bool = False) -> dict[str, UnitState]:
    if not units:
        return {}
    names = {unit: unit.removesuffix(".service") for unit in units} if containers else {}
    return host.get_fact(UnitStates, units=units, containers=names)
