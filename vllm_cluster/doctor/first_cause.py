"""The first cause in a log: known words before unknown, earlier before later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_cluster.plan.signs import NOISE, SIGNS, Sign

_STAMP = re.compile(r"^(\d+\.\d+) \S+ ([^:\[]+)(?:\[\d+\])?: ?(.*)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Ray guesses behind every process that is gone: SIGKILL, `ray stop`, a crash.
_GUESSES = re.compile(r"There are some potential root causes.*")
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
        return 0.0, _ANSI.sub("", line)
    return float(match[1]), _ANSI.sub("", match[3])


def causes(lines: Iterable[str]) -> list[LogCause]:
    """Every sign in `lines` of a journal, deepest first, then earliest."""
    return named(map(message, lines))


def named(messages: Iterable[tuple[float, str]]) -> list[LogCause]:
    """The same for times and words, wherever they were read."""
    found = []
    for time_s, words in messages:
        # `docker rm` before every start; a line of source in a traceback; and what stands around
        # the end of a log that Ray shows name nothing.
        if re.search(r"No such container|(?:^|\) )\s*raise | tail \(exit code\(s\)=", words):
            continue
        known = _GUESSES.sub("", words)
        for sign in SIGNS:
            if re.search(sign.pattern, known):
                who = _RANK.search(words)
                rank = f"{who[1]} {who[3] or ''}".strip() if who else ""
                found.append(LogCause(sign, time_s, words.strip(), rank))
                break
    return sorted(found, key=lambda cause: (cause.sign.rank, cause.time_s))


def first_cause(lines: Iterable[str]) -> str:
    """The words of the deepest and earliest sign; the last line that is one where there is none."""
    every = [line for line in lines if not line.startswith("-- ")]
    found = causes(every)
    if found:
        return found[0].words[:300]
    said = [words for line in every if (words := message(line)[1].strip())]
    telling = [words for words in said if not re.search(NOISE, words)]
    return telling[-1][:300] if telling else ""
