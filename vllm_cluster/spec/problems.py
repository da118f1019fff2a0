"""What is wrong with a description, said so that a person can act on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong: where it stands, what was found, what is accepted.

    `line` counts from 1; 0 means the file as a whole. `key` is the dotted path
    to the value, such as `hosts.node-b.address`. Without `accepted`, `found` says all.
    """

    line: int
    key: str
    found: str
    accepted: str

    def text(self, file: Path) -> str:
        """`FILE:LINE: KEY: found …; accepted: …`, the form that editors can jump to."""
        place = f"{file}:{self.line}" if self.line else str(file)
        key = f" {self.key}:" if self.key else ""
        if not self.accepted:
            return f"{place}:{key} {self.found}"
        return f"{place}:{key} found {self.found}; accepted: {self.accepted}"


class DescriptionError(ValueError):
    """A description that cannot be used. Carries every problem, not the first alone."""

    exit_code = 2

    def __init__(self, file: Path, problems: list[Problem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        super().__init__(self.text())

    def text(self) -> str:
        """One line a problem, then a line that says that nothing was touched."""
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        lines = [problem.text(self.file) for problem in self.problems]
        return "\n".join([*lines, f"{count} {noun}; no host was contacted."])


class RefusedError(DescriptionError):
    """A sound description of something that would not work, or not well."""

    exit_code = 1
