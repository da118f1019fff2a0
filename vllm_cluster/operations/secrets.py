"""Secrets that a host needs no more: gone from it."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host


class Names(FactBase[list[str]]):
    """Names of what lies in `directory`; none where there is none."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, directory: str) -> StringCommand:
        return StringCommand("ls -A", QuoteString(directory), "2>/dev/null || true")

    def process(self, output: list[str]) -> list[str]:
        return [line for line in output if line]


@operation()
def only(directory: str, keep: list[str]) -> Generator[StringCommand, None, None]:
    """Leave nothing in `directory`, which is ours alone, but the paths of `keep`.

    A former head would keep the API key, an interrupted run the half of a file.
    """
    paths = [f"{directory}/{name}" for name in host.get_fact(Names, directory=directory)]
    foreign = [path for path in paths if path not in keep]
    if not foreign:
        host.noop(f"{directory} holds what is needed here and no more")
        return
    host.log(f"{', '.join(foreign)}: not needed here")
    yield StringCommand("rm -rf", *[QuoteString(path) for path in foreign])
