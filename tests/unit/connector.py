"""A host in this process: pyinfra's own run, whose commands a test answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput, OutputLine, extract_control_arguments


class InProcess(BaseConnector):
    """Hands every command to `answer`; nothing travels as a file."""

    handles_execution = True

    @abstractmethod
    def answer(self, command: str, stdin: str) -> tuple[bool, str]:
        """Whether `command` ended with 0, and what it said."""

    @staticmethod
    def make_names_data(name: str) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        yield name, {}, []

    def run_shell_command(
        self,
        command: StringCommand,
        print_output: bool = False,  # noqa: ARG002  pyinfra's form
        print_input: bool = False,  # noqa: ARG002
        **arguments: Any,
    ) -> tuple[bool, CommandOutput]:
        given = extract_control_arguments(arguments)  # type: ignore[arg-type]
        good, out = self.answer(str(command.get_raw_value()), str(given.get("_stdin") or ""))
        return good, CommandOutput([OutputLine("stdout", line) for line in out.splitlines()])

    def put_file(self, *_: Any, **__: Any) -> bool:
        raise AssertionError("files travel as standard input")

    def get_file(self, *_: Any, **__: Any) -> bool:
        raise AssertionError("nothing is fetched")
