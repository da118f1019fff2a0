"""A run of an operator that is at work on the hosts: it comes before all that it may be causing."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, Step, by_hand
from vllm_cluster.plan.run_lock import LOCK, WAIT, Busy


def under_way(case: Case) -> Iterator[Finding]:
    """Each run that holds the lock, which is one, or each host's own way back of a switch."""
    held = {host.name: facts.run for host, facts in case.seen() if facts.run is not None}
    runs = dict.fromkeys(busy.bearer for busy in held.values() if busy.bearer is not None)
    first = next(iter(runs), None)
    for bearer in runs or (None,):
        # Where a run has only just arrived it has not written down yet who it is.
        names = [name for name, busy in held.items()
                 if busy.bearer == bearer or (busy.bearer is None and bearer == first)]  # fmt: skip
        if names:
            told = next(busy for busy in held.values() if busy.bearer == bearer)
            yield Finding(
                "host.run-under-way", "host", names[0],
                expected="no run at work on the hosts",
                found=told.text(),
                evidence=f"{LOCK} is held on {', '.join(names)}",
                fix=_fix(names[0], told),
                about=tuple(names[1:]),
            )  # fmt: skip


def _fix(host: str, busy: Busy) -> tuple[Step, ...]:
    if busy.bearer is not None and not busy.bearer.run:
        # No operator's: a host that finishes a switch by itself.
        return by_hand("Wait until it has ended; how far it is says, on "
                       f"{host}: journalctl --unit=vllm-cluster-switch-back")  # fmt: skip
    return by_hand(WAIT)


CHECKS = (under_way,)
