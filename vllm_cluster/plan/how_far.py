"""How far a start of vLLM is, out of its log up to now."""

from __future__ import annotations

import re

from vllm_cluster.plan.last_words import plain, uncoloured
from vllm_cluster.plan.signs import NOISE

# What clients ask, debugging, warnings of vLLM and of PyTorch, and a traceback's indented source.
_NO_NEWS = re.compile(
    rf"{NOISE}|\b(?:DEBUG|WARNING) \d\d-\d\d |\bW\d{{4}} [\d:]{{8}}\.|^(?:\([^)]*\) )* {{2}}"
)
# vLLM's emblem is drawn with lines that have none.
# What Ray puts before a line of a rank, which may be empty.
_PREFIX = re.compile(r"^\(\w+ pid=\d+[^)]*\)\s*$")
_WORD = re.compile(r"[A-Za-z]{2}")


def how_far(log: str) -> str:
    """The words of the last line that is news, at most 120 characters; empty where there is none.

    A bar of progress writes over its own line: what stands there last counts.
    """
    lines = (uncoloured(line) for line in reversed(log.splitlines()))
    told = (_PREFIX.sub("", plain(line)) for line in lines if not _NO_NEWS.search(line))
    return next((words for words in told if _WORD.search(words)), "")[:120]
