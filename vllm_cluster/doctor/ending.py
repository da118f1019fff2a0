"""How a unit ended last, and why: systemd forgets both as soon as it has started again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_cluster.doctor.first_cause import first_cause, message
from vllm_cluster.facts.doctor.model import Unit

Line = tuple[float, str]
_MANAGER = re.compile(r" systemd\[\d+\]: ")
# systemd's words (src/core/service.c, job.c), the one that says most first.
_ENDS = (
    r"(?:Main|Control) process exited, (.*)", r"(Start request repeated.*)",
    r"(start operation timed out.*)", r"Failed with result '(.*)'", r"(Deactivated) successfully",
)  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """The last end of a unit in this boot. `time_s`: since the epoch. `why`: words of its log."""

    time_s: float
    how: str
    why: str = ""

    def text(self) -> str:
        """For people."""
        return f"{self.how}: {self.why}" if self.why else self.how


def last_end(unit: Unit) -> Ending | None:
    """The last end; None where it has not ended since the boot."""
    said = [message(line) for line in unit.ends if _MANAGER.search(line)]
    log = [line for line in unit.ends if not _MANAGER.search(line)]
    ended = [life for life in _lives(said) if _end(life) is not None]
    if not ended:
        return None
    life = ended[-1]
    found = _end(life)
    assert found is not None  # noqa: S101
    time_s, how = found
    if any(words.startswith("Stopping ") for _, words in life):
        return Ending(time_s, "stopped on request")
    began_s = life[0][0]
    of_that_life = [line for line in log if began_s <= message(line)[0] <= time_s + 1]
    return Ending(time_s, how, first_cause(of_that_life))


def _lives(said: list[Line]) -> Iterator[list[Line]]:
    """systemd's lines from one "Starting" to the next."""
    life: list[Line] = []
    for line in said:
        if line[1].startswith("Starting ") and life:
            yield life
            life = []
        life.append(line)
    yield life


def _end(life: list[Line]) -> Line | None:
    for pattern in _ENDS:
        for time_s, words in life:
            if match := re.search(pattern, words):
                how = match[1].removeprefix("code=exited, ")
                return time_s, "ended with 0" if how == "Deactivated" else how
    return None
