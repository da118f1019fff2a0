"""A unit's ExecStart= read back into its arguments, as systemd.service(5) has it."""

from __future__ import annotations

import re

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')


def arguments(unit_text: str) -> list[str]:
    """The words of the first ExecStart=; empty where the text has none."""
    lines = unit_text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("ExecStart=")), None)
    if start is None:
        return []
    text = lines[start].removeprefix("ExecStart=")
    while text.endswith("\\"):
        start += 1
        text = text[:-1] + (lines[start] if start < len(lines) else "")
    return [_word(match[1], match[2]) for match in _WORD.finditer(text)]


def _word(quoted: str | None, plain: str | None) -> str:
    text = quoted if quoted is not None else plain or ""
    if quoted is not None:
        text = re.sub(r"\\(.)", r"\1", text)
    return text.replace("%%", "%").replace("$$", "$")
