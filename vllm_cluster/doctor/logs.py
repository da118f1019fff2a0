"""Ray's and vLLM's logs since the last start, boiled down to the first cause on each host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vllm_cluster.doctor import ray_files
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.first_cause import LogCause, causes, message, named
from vllm_cluster.facts.doctor.model import HostFacts, Unit
from vllm_cluster.plan.containers import VLLM
from vllm_cluster.plan.signs import ERROR, Sign

# Signs of this rank and above tell of waiting for others.
_WAITING = 4
# A look measures clocks no better; those that agree to that are left as they are.
_MEASURED_TO_S = 0.2


@dataclass(frozen=True)
class HostLog:
    """The causes in one log on one host, deepest first, and its last line. `unit` names the unit,
    or one of Ray's own files; `ahead_s`: how far the host's clock is ahead of this machine's."""

    host: str
    unit: str
    causes: tuple[LogCause, ...]
    last: str
    ahead_s: float = 0.0

    def here_s(self, cause: LogCause) -> float:
        """When that was by this machine's clock; 0 where the log has no time."""
        return cause.time_s and cause.time_s - self.ahead_s


def read(examination: Examination) -> list[HostLog]:
    """Every unit's log of every host that was seen."""
    found = []
    for name, facts in examination.look.facts.items():
        for unit in facts.units.values():
            lines = [line for line in unit.log if not line.startswith("-- ")]
            if lines:
                told = causes(_since_start(lines))
                if unit.running:
                    # What it waited for when it started has come.
                    told = [cause for cause in told if cause.sign.rank < _WAITING]
                found.append(HostLog(name, unit.name, tuple(told), message(lines[-1])[1].strip(),
                                     _ahead_s(facts)))  # fmt: skip
        found += _own_files(examination, name, facts)
    return found


def _ahead_s(facts: HostFacts) -> float:
    offset_s = facts.clock_offset_s or 0.0
    return offset_s if abs(offset_s) > _MEASURED_TO_S else 0.0


def _own_files(examination: Examination, host: str, facts: HostFacts) -> Iterator[HostLog]:
    """Ray's own files in which a cause is named."""
    plan = examination.case.plan
    head = examination.look.facts.get(plan.head)
    vllm = head.unit(f"{VLLM}.service") if head else Unit(VLLM)
    ranks = head.rank_lines if head else ()
    ray = any(u.running for n, u in facts.units.items() if n.startswith("ray-"))
    for file in facts.ray_files:
        workers = ray_files.of_a_worker(file)
        # Ray outlives vLLM: what a worker of vLLM's life before wrote is of no interest.
        if workers and file.changed_s < vllm.started_s:
            continue
        up = vllm.running if workers else ray
        told = [cause for cause in named(ray_files.complaints(file))
                if not (up and cause.sign.rank >= _WAITING)
                # Ray's own parts recover from many an error, and tell of each.
                and (workers or _names(cause.sign))]  # fmt: skip
        if told:
            who = ray_files.rank_words(file, ranks, plan.hosts[host].address)
            told = [replace(cause, rank_words=who) for cause in told] if who else told
            last = message(file.lines[-1])[1].strip()
            yield HostLog(host, file.name, tuple(told), last, _ahead_s(facts))


def _names(sign: Sign) -> bool:
    """Whether it says more than “an error”."""
    return sign.meaning != ERROR


def _since_start(lines: list[str]) -> list[str]:
    """From systemd's last "Starting": what came before belongs to another life."""
    for number in range(len(lines) - 1, -1, -1):
        if "systemd[" in lines[number] and ": Starting " in lines[number]:
            return lines[number:]
    return lines


def first(found: list[HostLog]) -> tuple[HostLog, LogCause] | None:
    """The deepest cause of all hosts; of equal ones the earliest."""
    every = [(log, cause) for log in found for cause in log.causes[:1]]
    every = [(log, cause) for log, cause in every if _names(cause.sign)] or every
    return min(every, key=lambda one: (one[1].sign.rank, one[0].here_s(one[1])), default=None)


def text(examination: Examination) -> str:
    """For people: the first cause, then what each log says."""
    silent = examination.look.silent
    seen = bool(examination.look.facts)
    lines = list(_lines(read(examination))) if seen else ["No host answered: no log was read."]
    unseen = [f"{name} not seen: {s.words.splitlines()[-1]}" for name, s in silent.items()]
    return "\n".join([*lines, *unseen])


def _lines(found: list[HostLog]) -> Iterator[str]:
    cause = first(found)
    if cause is None:
        yield "Nothing in the logs since the last start names a cause."
    else:
        log, told = cause
        who = f", {told.rank_words}" if told.rank_words else ""
        yield f"first cause: {told.sign.meaning} ({told.sign.plane} plane)"
        yield f"    {log.host}, {log.unit}{who}: {told.words[:300]}"
    yield ""
    for log in found:
        yield f"{log.host} {log.unit}"
        seen: set[str] = set()
        for told in log.causes:
            if told.sign.meaning not in seen:
                seen.add(told.sign.meaning)
                yield f"    {told.sign.plane:<10} {told.sign.meaning}: {told.words[:200]}"
        yield f"    last       {log.last[:200]}"


def to_json(examination: Examination) -> dict[str, Any]:
    """For programs."""
    found = read(examination)
    cause = first(found)
    return {
        "first": _cause(*cause) if cause else None,
        "silent": {name: silence.words for name, silence in examination.look.silent.items()},
        "logs": [
            {"host": log.host, "unit": log.unit, "last": log.last,
             "causes": [_cause(log, told) for told in log.causes[:20]]}
            for log in found
        ],
    }  # fmt: skip


def _cause(log: HostLog, told: LogCause) -> dict[str, Any]:
    return {
        "host": log.host, "unit": log.unit, "plane": told.sign.plane,
        "meaning": told.sign.meaning, "time_s": told.time_s, "who": told.rank_words,
        "words": told.words,
    }  # fmt: skip
