"""Why something ended, out of the log of that life: for a switch, for doctor and for status."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vllm_cluster.plan.signs import (
    DOCKER,
    ERROR,
    GUESSES,
    LOGGER,
    NAMELESS,
    NOISE,
    PAST,
    SIGNS,
    Sign,
)

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NAMES_NOTHING = re.compile(f"{NOISE}|{NAMELESS}")
_PAST = re.compile(PAST)
# Letters of a reason.
_LONGEST = 300


def uncoloured(line: str) -> str:
    """The line as it reads on a screen without colours."""
    return _ANSI.sub("", line)


def plain(line: str) -> str:
    """The words alone: without what loggers put before them and what Ray guesses behind them."""
    words = re.sub(DOCKER, r"\1", re.sub(GUESSES, "", uncoloured(line)))
    return re.sub(LOGGER, "", words).strip()


def sign(words: str) -> Sign | None:
    """What a line names; None where it names nothing."""
    if _NAMES_NOTHING.search(words):
        return None
    known = re.sub(GUESSES, "", words)
    return next((each for each in SIGNS if re.search(each.pattern, known)), None)


def telling(lines: Iterable[str]) -> list[str]:
    """The lines of a life that has ended which may say why."""
    every = map(uncoloured, lines)
    return [line for line in every if line.strip() and not _NAMES_NOTHING.search(line)
            and not _PAST.search(line)]  # fmt: skip


def why(lines: Iterable[str], *, errors: bool = True) -> str:
    """The earliest of the deepest signs, cut at a word where it is long; empty where there is none.

    `errors`: whether one that no sign knows may be why.
    """
    found = [(known.rank, line) for line in telling(lines)
             if (known := sign(line)) and (errors or known.meaning != ERROR)]  # fmt: skip
    line = min(found, key=lambda one: one[0], default=(0, ""))[1]
    return cut(plain(line), _LONGEST)


def cut(words: str, length: int) -> str:
    """Cut at a word where it is longer."""
    if len(words) <= length:
        return words
    whole = words[: length + 1].rpartition(" ")[0]
    # Of a word that fills the line its beginning says more than nothing.
    return f"{whole if len(whole) > length // 2 else words[:length]}…"
