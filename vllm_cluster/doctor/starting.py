"""What has only just begun: it comes by itself, and a restart would begin it anew."""

from __future__ import annotations

import re

from vllm_cluster.doctor.first_cause import message, of_this_start
from vllm_cluster.facts.doctor.model import HostFacts, Unit

# How long Docker and Ray may take, from their unit's start, until they answer and know each other.
STARTING_S = 60
# From the third end since it last held it is no longer a start that went wrong once.
LOOP_RESTARTS = 3
# The last start in a row: StartLimitBurst= of the units.
LAST_START = 10
# What `attempt` says while it waits between two starts of a unit.
_PAUSING = re.compile(r"start (\d+) since \S+ last held; pausing (\d+) s")
_UNCOUNTED = re.compile(r"the count of starts, \S+, (?:cannot be written|holds no number)")
_CHANGING = {"activating", "deactivating", "active"}


def starting(facts: HostFacts, unit: Unit) -> bool:
    """Whether the unit is in its first minute, and does not end again and again: what runs may
    hold, however often it ended before."""
    if unit.load != "loaded" or stopped(unit) or (in_a_loop(facts, unit) and not unit.running):
        return False
    if not unit.changed_s:  # not since the boot
        return 0 < facts.system.uptime_s < STARTING_S
    return unit.active in _CHANGING and lately(facts, unit.changed_s)


def stopped(unit: Unit) -> bool:
    """Whether it was stopped, in this boot or for good: it does not come by itself."""
    idle = unit.load == "loaded" and unit.active == "inactive" and not unit.queued
    return idle and (unit.changed_s > 0 or unit.file_state == "disabled")


def in_a_loop(facts: HostFacts, unit: Unit) -> bool:
    """Whether it has ended again and again since it last held."""
    return in_a_row(facts, unit) >= LOOP_RESTARTS


def in_a_row(facts: HostFacts, unit: Unit) -> int:
    """How often it ended since it last held; systemd's count where `attempt` cannot keep one."""
    counted = max(unit.in_a_row, pausing(unit) - 1)
    return max(counted, unit.restarts) if _uncounted(facts, unit) else counted


def _uncounted(facts: HostFacts, unit: Unit) -> bool:
    # Past its pauses a start has been counted, and before the first two there is none.
    begun = unit.sub in {"start", "start-post"} and not facts.recovered(unit.name).starts
    said = any(_UNCOUNTED.search(line) for line in unit.log)
    return begun or said or pausing(unit) in {1, 2}


def lately(facts: HostFacts, time_s: float) -> bool:
    """Whether that was less than a minute ago by the host's clock, which may have stepped."""
    return abs(facts.clock_s - time_s) < STARTING_S


def between(unit: Unit) -> bool:
    """Whether it has ended, and its next start has not begun: systemd 254 and newer say so too of
    one that waits for another unit's start."""
    return unit.sub in {"auto-restart", "auto-restart-queued"}


def pausing(unit: Unit) -> int:
    """Which start in a row it pauses before; 0 where it does not pause."""
    return int(match[1]) if (match := _pause(unit)) else 0


def _pause(unit: Unit) -> re.Match[str] | None:
    return _PAUSING.search(unit.log[-1]) if unit.log else None


def pause_left_s(facts: HostFacts, unit: Unit) -> int:
    """How much longer it pauses before its next start, in whole seconds."""
    match = _pause(unit)
    left_s = message(unit.log[-1])[0] + int(match[2]) - facts.clock_s if match else 0.0
    return max(0, round(left_s))


def next_start(facts: HostFacts, unit: Unit) -> str:
    """Which start of a unit in a loop is under way and what it waits for, or how long it still
    pauses before it; empty where neither is known."""
    if unit.active == "deactivating":
        return "it is ending once more"
    count = 0 if _uncounted(facts, unit) else facts.recovered(unit.name).starts or pausing(unit)
    which = f"start {count} of {LAST_START}" if count else "the next start"
    if left_s := pause_left_s(facts, unit):
        return f"it pauses {left_s} s more before {which}"
    if not count or between(unit):
        return ""
    last = of_this_start(unit.log) if unit.sub == "start-pre" else ""
    return f"{which} is {last if last.startswith('waiting') else 'under way'}"


def since(facts: HostFacts, unit: Unit) -> str:
    """How it is and for how long, for people."""
    if not unit.changed_s:
        return f"{unit.name} has not begun yet, {facts.system.uptime_s:.0f} s after the boot"
    how = "running" if unit.running else f"{unit.active} ({unit.sub})"
    return f"{unit.name} has been {how} for {max(0.0, facts.clock_s - unit.changed_s):.0f} s"
