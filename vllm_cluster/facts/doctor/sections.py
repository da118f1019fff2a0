"""The script's output cut into sections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_cluster.facts.doctor.script import MARK

TIMED_OUT = frozenset({124, 137})


@dataclass(frozen=True)
class Section:
    """`name` and its `argument`, lines, and the exit code of what did not end with 0."""

    name: str
    argument: str
    lines: tuple[str, ...]
    code: int = 0

    @property
    def timed_out(self) -> bool:
        """timeout(1) ends with 124, or 137 where it had to kill."""
        return self.code in TIMED_OUT

    @property
    def text(self) -> str:
        """All lines, each with its newline."""
        return "".join(f"{line}\n" for line in self.lines)


class Sections:
    """Sections by name; several of one name keep their order."""

    def __init__(self, output: str) -> None:
        self.all = tuple(_split(output))

    def named(self, name: str) -> tuple[Section, ...]:
        """Every section of that name."""
        return tuple(section for section in self.all if section.name == name)

    def one(self, name: str) -> Section:
        """The first section of that name; an empty one where there is none."""
        return next(iter(self.named(name)), Section(name, "", ()))

    def pairs(self, name: str) -> Iterator[tuple[str, str]]:
        """`word rest` of each line of a section."""
        for line in self.one(name).lines:
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def _split(output: str) -> Iterator[Section]:
    """A connection that broke leaves half a line at the end, which is left out."""
    name, argument, code = "", "", 0
    lines: list[str] = []
    for line in output[: output.rfind("\n") + 1].splitlines():
        # An answer without a newline at its end runs into the mark behind it.
        before, mark, after = line.partition(MARK)
        ended = after.removeprefix("= ") if after.startswith("= ") else ""
        if not mark or not (ended.isdigit() or (not before and after.startswith(" "))):
            lines.append(line)
            continue
        if ended.isdigit():
            code = int(ended)
            # What was ended from outside may have said half a line.
            if before and code not in TIMED_OUT:
                lines.append(before)
            continue
        if name:
            yield Section(name, argument, tuple(lines), code)
        name, _, argument = after.strip().partition(" ")
        lines, code = [], 0
    if name:
        yield Section(name, argument, tuple(lines), code)
