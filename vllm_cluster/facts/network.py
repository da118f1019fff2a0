"""Network cards and the addresses that they hold."""

from __future__ import annotations

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase


class Interfaces(FactBase[dict[str, str]]):
    """IPv4 address -> the interface that holds it."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self) -> StringCommand:
        return StringCommand("ip -o -4 address show")

    def process(self, output: list[str]) -> dict[str, str]:
        rows = (line.split() for line in output)
        return {row[3].split("/")[0]: row[1] for row in rows if len(row) > 3}
