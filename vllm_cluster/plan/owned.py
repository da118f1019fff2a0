"""The record of what we changed on a host, as its journal says (operations/owned.py writes it)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Record:
    """KIND -> NAME -> the values of its lines, oldest first.

    What was there before: `file`, `directory`, `mode`, `unit`, `sysctl`, `shm`, `hostname`, `hold`,
    `image`, `weights`, `disk`, `gpu`, `engine`; what packages brought: `package`, `user`, `group`,
    `upgraded`, `gone`. What we brought last: `wrote`, `set`. Each write of a file of others:
    `merge`.
    """

    lines: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    def first(self, kind: str) -> dict[str, str]:
        """NAME -> what was there before."""
        return {name: values[0] for name, values in self.lines.get(kind, {}).items()}

    def last(self, kind: str) -> dict[str, str]:
        """NAME -> what was written last."""
        return {name: values[-1] for name, values in self.lines.get(kind, {}).items()}

    def every(self, kind: str) -> dict[str, tuple[str, ...]]:
        """NAME -> all values."""
        return dict(self.lines.get(kind, {}))


def parse(lines: Iterable[str]) -> Record:
    """The journal's lines. One that a power cut or a full disk left in half is left out."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in lines:
        parts = line.rstrip("\n").split("\t")
        if len(parts) == 3 and all(parts):
            kind, name, value = parts
            names = found.setdefault(kind, {})
            names[name] = (*names.get(name, ()), value)
    return Record(found)
