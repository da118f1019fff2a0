"""The watchdogs: there, and what they had to do."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks.units import plane_of
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.facts.doctor.script import watchdog_of
from vllm_cluster.plan import paths

# A watchdog starts after its unit, and again some seconds after it ends.
_GRACE_S = 30
# It hears from inside every few seconds, and ends its container after a minute without.
_DEAF_S = 120


def watched(case: Case) -> Iterator[Finding]:
    """A unit that runs has its watchdog, and that hears from inside the container."""
    for host, facts in case.deployed():
        for name in host.containers:
            unit, watchdog = facts.unit(f"{name}.service"), facts.unit(watchdog_of(name))
            active_s = facts.clock_s - unit.active_since_s
            if not unit.running or active_s < _GRACE_S or watchdog.load != "loaded":
                continue
            deaf_s = min(active_s, facts.system.uptime_s - facts.recovered(unit.name).watched_s)
            if watchdog.active not in {"active", "activating"}:
                found = f"it is {watchdog.active}"
                evidence = f"systemctl show {watchdog.name}: ActiveState={watchdog.active}"
                fix = on(host.name, f"systemctl start {watchdog.name}")
            elif deaf_s > _DEAF_S:
                found = f"it has heard nothing from inside for {deaf_s:.0f} s"
                evidence = f"{paths.UNITS_STATE}/{name}.watched is as old, or missing"
                fix = by_hand(f"On {host.name}: journalctl --unit={watchdog.name} says why")
            else:
                continue
            plane = plane_of(unit.name)
            yield Finding(
                f"{plane}.unwatched", plane, host.name,
                expected=f"{watchdog.name} running",
                found=f"{found}: nobody restarts {name} when it hangs",
                evidence=evidence,
                fix=fix,
                severity="warning",
            )  # fmt: skip


def ended(case: Case) -> Iterator[Finding]:
    """What the watchdog ended since the unit last held for ten minutes."""
    for host, facts in case.deployed():
        for name in host.containers:
            unit = facts.unit(f"{name}.service")
            reasons = facts.recovered(unit.name).watchdog
            if reasons and unit.running:
                plane = plane_of(unit.name)
                yield Finding(
                    f"{plane}.was-hung", plane, host.name,
                    expected=f"{name} alive without the watchdog's help",
                    found=f"the watchdog had to restart it {len(reasons)} times",
                    evidence=reasons[-1],
                    fix=by_hand(f"Nothing now; if it comes again: on {host.name}: "
                                f"journalctl --unit={unit.name} around that time"),
                    severity="warning",
                )  # fmt: skip


def flaps(case: Case) -> Iterator[Finding]:
    """A unit that ends again and again, each time later than it takes to hold."""
    for host, facts in case.deployed():
        for name in host.containers:
            unit = facts.unit(f"{name}.service")
            reasons = facts.recovered(unit.name).often(facts.clock_s)
            if reasons and unit.active in {"active", "activating"}:
                plane = plane_of(unit.name)
                yield Finding(
                    f"{plane}.flaps", plane, host.name,
                    expected=f"{name} runs until somebody stops it",
                    found=f"it was started again {len(reasons)} times in 24 h",
                    evidence=f"the last time because: {reasons[-1]}",
                    fix=by_hand(f"Mend the cause; on {host.name}: "
                                f"journalctl --unit={unit.name} --since=-24h"),
                    severity="warning",
                )  # fmt: skip


CHECKS = (watched, ended, flaps)
