"""The first cause in a log: known words before unknown, earlier before later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_cluster.plan.last_words import plain, sign, uncoloured, why
from vllm_cluster.plan.signs import NOISE, Sign

_STAMP = re.compile(r"^(\d+\.\d+) \S+ ([^:\[]+)(?:\[\d+\])?: ?(.*)$")
_RANK = re.compile(r"\((\w*Worker\w*|\w*EngineCore\w*) pid=(\d+)(?:, ip=([\d.]+))?\)")


@dataclass(frozen=True)
class LogCause:
    """What a log boils down to. `time_s`: seconds since the epoch, 0 where the log has none."""

    sign: Sign
    time_s: float
    words: str
    rank_words: str = ""


def message(line: str) -> tuple[float, str]:
    """Time and words of a journal line in the form short-unix, colours taken out."""
    match = _STAMP.match(line)
    if match is None:
        return 0.0, uncoloured(line)
    return float(match[1]), uncoloured(match[3])


def causes(lines: Iterable[str]) -> list[LogCause]:
    """Every sign in `lines` of a journal, deepest first, then earliest."""
    return named(map(message, lines))


def named(messages: Iterable[tuple[float, str]]) -> list[LogCause]:
    """The same for times and words, wherever they were read."""
    found = []
    for time_s, words in messages:
        if known := sign(words):
            who = _RANK.search(words)
            rank = f"{who[1]} {who[3] or ''}".strip() if who else ""
            found.append(LogCause(known, time_s, words.strip(), rank))
    return sorted(found, key=lambda cause: (cause.sign.rank, cause.time_s))


def first_cause(lines: Iterable[str]) -> str:
    """The words of the deepest and earliest sign; the last line that is one where there is none."""
    said = [message(line)[1] for line in lines if not line.startswith("-- ")]
    if found := why(said):
        return found
    told = [plain(words) for words in said if words.strip() and not re.search(NOISE, words)]
    return told[-1][:300] if told else ""


def of_this_start(lines: Iterable[str], *, waited: bool = True) -> str:
    """The last words of a start, of which its journal tells; those before systemd's last "Starting"
    are of what ran before, until it was killed. `waited`: for what it waits or has waited, too."""
    last = ""
    for line in lines:
        words = message(line)[1]
        if " systemd[" in line:
            last = "" if words.startswith("Starting ") else last
        elif line.startswith("-- ") or not words.strip() or re.search(NOISE, words):
            continue
        elif waited or not words.startswith("waiting"):
            last = plain(words)
    return last[:300]
