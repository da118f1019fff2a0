"""A unit of ours that is down: how it is, why, and what brings it back."""

from __future__ import annotations

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.ending import HEAD_ENDED, ON_REQUEST, end_of
from vllm_cluster.doctor.finding import GAVE_UP, HERE, STOPPED, Step, by_hand, on
from vllm_cluster.doctor.first_cause import first_cause, of_this_start
from vllm_cluster.doctor.starting import (
    in_a_loop,
    in_a_row,
    next_start,
    pause_left_s,
    since,
    stopped,
)
from vllm_cluster.facts.doctor.model import HostFacts, Unit
from vllm_cluster.plan import paths

_CHANGING = {"activating", "deactivating"}
# `attempt` says it in the same words.
_NO_CAUSE = "its log names no cause"


def disabled(unit: Unit) -> bool:
    """Whether no boot starts it, which is told as such: unless it is stopped as well."""
    return unit.file_state == "disabled" and not stopped(unit)


def state_words(facts: HostFacts, unit: Unit) -> str:
    """A unit's state for people."""
    if stopped(unit):
        return STOPPED + ", and no boot starts it" * (unit.file_state == "disabled")
    if unit.active == "failed" and (gave_up := facts.recovered(unit.name).gave_up):
        # systemd's own count begins anew with each new head.
        return GAVE_UP + gave_up.partition(",")[0].removeprefix("gave up")
    if unit.active in _CHANGING:
        return _changing(facts, unit)
    # After the commands that follow an end systemd has their code.
    how = end.how if (end := end_of(facts, unit)) else f"exit {unit.exit_status}"
    return f"it is {unit.active} ({unit.result}, {how})"


def _changing(facts: HostFacts, unit: Unit) -> str:
    last = _last(facts, unit)
    if in_a_loop(facts, unit):
        following = next_start(facts, unit)
        times = f"it ends again and again ({in_a_row(facts, unit)} times{last})"
        return f"{times}; {following}" if following else times
    if unit.active == "deactivating":
        return since(facts, unit)
    if unit.restarts:
        return "it ended and starts again" + (f" ({last.removeprefix(', ')})" if last else "")
    return "it is still waiting to start"


def _last(facts: HostFacts, unit: Unit) -> str:
    # While a unit activates systemd shows 0 for whatever its process ended with.
    if end := end_of(facts, unit):
        return f", last: {end.how}"
    return f", exit {unit.exit_status}" if unit.exit_status else ""


def evidence(facts: HostFacts, unit: Unit) -> str:
    """Why, in words of its log; of one that starts again, of its last life alone."""
    if gave_up := facts.recovered(unit.name).gave_up:
        return gave_up
    if unit.active in _CHANGING and not in_a_loop(facts, unit):
        found = of_this_start(unit.log)
    elif end := end_of(facts, unit):
        silent = "" if end.how == ON_REQUEST else f"; {_NO_CAUSE}"
        found = end.why or f"{unit.name}: {end.how}{silent}"
    else:
        found = "" if stopped(unit) else first_cause(unit.log)
    return found or f"{unit.name}: {unit.active} {unit.sub}"


def start(
    case: Case, host: str, facts: HostFacts, unit: Unit, *, also: str = ""
) -> tuple[Step, ...]:
    """What brings a unit back that is down: all that is stopped starts at once, in order."""
    if stopped(unit):
        return (Step(HERE, f"vllm-cluster start {case.description}"),)
    if unit.active not in _CHANGING:
        begin = f"systemctl reset-failed {unit.name}; systemctl start --no-block {unit.name}"
        return on(host, begin + also)
    if unit.active == "deactivating":
        return by_hand("Wait; when it has ended it starts again by itself, unless it was stopped")
    log = f"on {host}: journalctl --unit={unit.name}"
    if not in_a_loop(facts, unit):
        return by_hand(f"Mend what it waits for ({log}); it starts by itself when that is there")
    known = f"Mend the cause, unless it has passed ({log}); the unit starts again by itself"
    unknown = f"Wait; it starts again by itself. If it ends once more: {log}"
    steps = by_hand(known if _names_a_cause(facts, unit) else unknown)
    # A restart would end a start that is under way; of one that pauses it cuts the pause short.
    if not pause_left_s(facts, unit):
        return steps
    held = f"{paths.SCRIPTS}/attempt held {unit.name}; "
    begin = f"{held}systemctl restart --no-block {unit.name}{also}"
    return (*steps, *by_hand(f"To start it without that pause: on {host}: {begin}"))


def _names_a_cause(facts: HostFacts, unit: Unit) -> bool:
    """Whether its last end says what to mend: what the head took down ended for no fault of its
    own."""
    end = end_of(facts, unit)
    return bool(end and end.why and end.why != HEAD_ENDED and not end.why.endswith(_NO_CAUSE))
