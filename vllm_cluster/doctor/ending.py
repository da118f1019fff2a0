"""How a unit ended last, and why: systemd forgets both as soon as it has started again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from vllm_cluster.doctor.first_cause import message
from vllm_cluster.doctor.starting import between
from vllm_cluster.facts.doctor.model import HostFacts, Recovery, Unit
from vllm_cluster.plan import last_words
from vllm_cluster.plan.containers import RAY_HEAD, VLLM

Line = tuple[float, str]
ON_REQUEST, BY_ITSELF = "stopped on request", "ended by itself"
_STOPPED_STARTING = ": stopped while vLLM started;"
_MANAGER = re.compile(r" systemd\[\d+\]: ")
# systemd's words (src/core/service.c, job.c), the one that says most first.
_ENDS = (
    r"(?:Main|Control) process exited, (.*)", r"(Start request repeated.*)",
    r"(start operation timed out.*)", r"Failed with result '(.*)'", r"(Deactivated) successfully",
)  # fmt: skip
ANEW = "the Ray session is made anew"
HEAD_ENDED = "Ray's head ended"
# What `attempt say` puts into the unit's journal of an end: the watchdog's reason, why it gave up,
# and to the head why its session ends.
_OURS = re.compile(rf" vllm-cluster\[\d+\]: ((?:watchdog: |gave up |{ANEW}).*)")
_MORE = re.compile(r"; the container is ended$")
# An error from long before says nothing of the end.
_RECENT_S = 300
# docker's own failures, and those of the unit's other commands: their last words are the reason.
_LAST_WORDS = re.compile(r"status=12[567]/|Control process exited")
# systemd's names of exit codes are those of init scripts.
_NAME = re.compile(r"^(code=exited, status=\d+)/(?!FAILURE)[A-Z]+$")
# A signal: from outside, or of docker's container.
_KILLED = re.compile(r"Main process exited, code=(?:killed|dumped|exited, status=1(?:29|[3-5]\d)/)")
# `attempt` notes a restart at the next start, by a clock of whole seconds.
_NOTED_S = 5
# Ray's head takes vLLM down with it within so long.
_TOGETHER_S = 10


@dataclass(frozen=True)
class Ending:
    """The last end of a unit in this boot. `time_s`: since the epoch. `why`: words of its log."""

    time_s: float
    how: str
    why: str = ""

    def text(self) -> str:
        """For people."""
        return f"{self.how}: {self.why}" if self.why else self.how


@dataclass(frozen=True)
class _Life:
    """What systemd said from one "Starting" to the next, and the unit's own journal lines."""

    said: list[Line]
    log: list[str]
    until_s: float

    @property
    def end(self) -> Line | None:
        for pattern in _ENDS:
            for time_s, words in self.said:
                if match := re.search(pattern, words):
                    how = _NAME.sub(r"\1", match[1]).removeprefix("code=exited, ")
                    # Ray's units take a 1 for a success too.
                    return time_s, BY_ITSELF if how == "Deactivated" else how
        return None

    def errors_tell(self, unit: Unit) -> bool:
        """Whether an error that no sign knows may be why. Where vLLM served, of which active says
        that it completed something, it may be a client's; a signal comes from elsewhere."""
        said = [words for _, words in self.said]
        served = unit.name == "vllm.service" and any(w.startswith("Started ") for w in said)
        return not served and not any(_KILLED.search(words) for words in said)

    def stopped(self, unit: Unit) -> bool:
        """Whether somebody asked for the end. systemd logs no "Stopping" of what has not started
        yet; the unit's own script does, and what ends by itself is started again."""
        said = [words for _, words in self.said]
        if any(words.startswith("Stopping ") for words in said):
            return True
        if any(_STOPPED_STARTING in line for line in self.log):
            return True
        again = between(unit) or any("Scheduled restart job" in w for w in said)
        return not again and self.end is not None and self.end[1] == BY_ITSELF


def last_end(unit: Unit, noted: Recovery | None = None) -> Ending | None:
    """The last end; None where it has not ended since the boot. `noted`: the unit's own notes."""
    ended = [life for life in _lives(unit.ends) if life.end is not None]
    if not ended:
        return None
    life = ended[-1]
    assert life.end is not None  # noqa: S101
    time_s, how = life.end
    stopped = life.stopped(unit)
    ours = [match[1] for line in life.log if (match := _OURS.search(line))]
    # It gives up by a stop of its own.
    if ours and (not stopped or ours[-1].startswith("gave up")):
        return Ending(time_s, how, _MORE.sub("", ours[-1]))
    if stopped:
        return Ending(time_s, ON_REQUEST)
    said = _noted(life, noted or Recovery())
    if said.startswith(("watchdog: ", "start: ")):
        return Ending(time_s, how, said)
    return Ending(time_s, how, _cause(life, unit, said))


def end_of(facts: HostFacts, unit: Unit) -> Ending | None:
    """The last end as its own journal has it, and with Ray's head where that took vLLM down, which
    then says nothing itself."""
    end = last_end(unit, facts.recovered(unit.name))
    head = last_end(facts.unit(f"{RAY_HEAD}.service")) if unit.name == f"{VLLM}.service" else None
    if end is None or head is None or end.why or head.how == ON_REQUEST:
        return end
    if abs(end.time_s - head.time_s) > _TOGETHER_S:
        return end
    how = "stopped" if end.how == ON_REQUEST else end.how
    return replace(end, how=how, why=head.why if ANEW in head.why else HEAD_ENDED)


def _lives(ends: tuple[str, ...]) -> Iterator[_Life]:
    said = [message(line) for line in ends if _MANAGER.search(line)]
    log = [line for line in ends if not _MANAGER.search(line)]
    starts = [n for n, (_, words) in enumerate(said) if words.startswith("Starting ")]
    bounds = [0, *(n for n in starts if n > 0), len(said)]
    for first, after in pairwise(bounds):
        until_s = said[after][0] if after < len(said) else float("inf")
        if first < after:
            began_s = said[first][0]
            mine = [line for line in log if began_s <= message(line)[0] < until_s]
            yield _Life(said[first:after], mine, until_s)


def _noted(life: _Life, noted: Recovery) -> str:
    """Why the unit itself says that it was started again."""
    for when_s, why in noted.again:
        if -1 <= when_s - life.until_s <= _NOTED_S:
            return why
    return ""


def _cause(life: _Life, unit: Unit, said: str) -> str:
    """The deepest sign of its last minutes, and in what is `said` of its end; nothing rather than a
    line that says something else."""
    assert life.end is not None  # noqa: S101
    # What `attempt` says of earlier ends has their words.
    log = [message(line) for line in life.log if " vllm-cluster[" not in line]
    recent = [words for time_s, words in log if time_s >= life.end[0] - _RECENT_S]
    if found := last_words.why([*recent, said], errors=life.errors_tell(unit)):
        return found
    telling = last_words.telling(recent)
    if telling and any(_LAST_WORDS.search(words) for _, words in life.said):
        return last_words.plain(telling[-1])[:300]
    return ""
