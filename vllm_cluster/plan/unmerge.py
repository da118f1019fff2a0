"""Our changes taken out of a file that others write too, whatever they wrote since.

Each of our writes is known as a pair (old, new), oldest first. The newest is taken back first: as a
whole where the file is still as we left it, otherwise by what it changed and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_cluster.plan.docker_config import parsed
from vllm_cluster.plan.hosts_file import BEGIN, END

_ABSENT = object()


@dataclass(frozen=True)
class Write:
    """One write of ours; `old` is None where there was no file."""

    old: str | None
    new: str


def unmerged(path: str, now: str, writes: Sequence[Write]) -> str | None:
    """The text of `path` without what we wrote; None for no file.

    Raises ValueError where the file was changed since and is of no kind that can be unmerged.
    """
    text: str | None = now
    for write in reversed(writes):
        if text is None or text == write.new:
            text = write.old
        elif path.endswith(".json"):
            text = _json(text, write)
        elif path == "/etc/hosts":
            text = _lines(text, write)
        elif text != write.old:
            raise ValueError("changed since it was written")
    return _as_it_was(path, text, writes)


def _as_it_was(path: str, text: str | None, writes: Sequence[Write]) -> str | None:
    """The very bytes of before where the meaning is the same."""
    first = writes[0].old if writes else None
    if path.endswith(".json") and text is not None:
        if first is None and parsed(text) == {}:
            return None
        if first is not None and parsed(first) == parsed(text):
            return first
    return text


def _json(now: str, write: Write) -> str:
    """Keys that we added or changed go back, unless somebody changed them again."""
    have, old, new = parsed(now), parsed(write.old or ""), parsed(write.new)
    return json.dumps(_back(have, old, new), indent=2) + "\n"


def _back(have: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(have)
    for key in [*new, *(key for key in old if key not in new)]:
        was, ours, here = old.get(key, _ABSENT), new.get(key, _ABSENT), have.get(key, _ABSENT)
        if was == ours:
            continue
        if here == ours:
            _put(result, key, was)
        elif isinstance(here, dict) and isinstance(ours, dict):
            inner = _back(here, was if isinstance(was, dict) else {}, ours)
            _put(result, key, inner or was)
    return result


def _put(result: dict[str, Any], key: str, value: Any) -> None:
    if value is _ABSENT:
        result.pop(key, None)
    else:
        result[key] = value


def _lines(now: str, write: Write) -> str:
    """Our block goes; the lines that we changed or took off come back where they stood."""
    old, new = (write.old or "").splitlines(), _outside(write.new)
    kept = _outside(now)
    for at, line in enumerate(old):
        if line in new:
            continue
        # What we made of it, if anything, begins with the same address.
        made = [n for n in new if n not in old and n.split()[:1] == line.split()[:1]]
        for words in made:
            if words in kept:
                kept.remove(words)
        if line.strip() and line not in kept:
            kept.insert(_place(kept, old[:at]), line)
    return "\n".join(kept) + "\n" if kept else ""


def _place(kept: list[str], before: list[str]) -> int:
    """After the nearest line that stood before it and is still there."""
    for line in reversed(before):
        if line in kept:
            return kept.index(line) + 1
    return 0


def _outside(text: str) -> list[str]:
    lines, inside = [], False
    for line in text.splitlines():
        if line == BEGIN:
            inside = True
        elif line == END and inside:
            inside = False
        elif not inside:
            lines.append(line)
    return lines
