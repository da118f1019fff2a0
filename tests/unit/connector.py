"""A host in this process: pyinfra's own run, whose commands a test answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import State, StateStage
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput, OutputLine, extract_control_arguments
from pyinfra.context import ctx_inventory


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


@contextmanager
def executed(
    hosts: list[tuple[str, dict[str, Any]]], connector: type[InProcess],
    add: Callable[[State], object], **config: Any,
) -> Iterator[State]:  # fmt: skip
    """What `add` adds, run on these hosts with their data; connected while the block lasts."""
    inventory = Inventory((hosts, {}))  # type: ignore[no-untyped-call]
    for host in inventory:
        host.connector_cls = connector
    state = State(inventory, Config(**config))  # type: ignore[no-untyped-call]
    ctx_inventory.set(inventory)  # type: ignore[no-untyped-call]
    connect_all(state)
    state.set_stage(StateStage.Prepare)
    add(state)
    state.set_stage(StateStage.Execute)
    with suppress(PyinfraError):  # raised when no host, or too few, remain
        run_ops(state)
    yield state
    disconnect_all(state)
