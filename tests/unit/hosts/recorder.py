"""Steps run in this process against recorded answers: what would be sent to a host, and nothing is.

A fact's command is answered by the first of `answers` whose key it contains; whatever else would
run on the host is kept, with what would be its standard input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pyinfra.api.facts as pyinfra_facts
from pyinfra.api.command import StringCommand
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.deploy import add_deploy
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import State
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput, OutputLine, extract_control_arguments
from pyinfra.context import ctx_inventory

_FILE = re.compile(r"^state (?:open|closed) (\S+?)'?$", re.MULTILINE)
_UNITS = re.compile(r"^systemctl show --property=Id,\S+ ([^;]+)")
_STOPPED = (
    "LoadState=loaded\nActiveState=inactive\nSubState=dead\nUnitFileState=disabled\n"
    "NeedDaemonReload=no\nResult=success\n"
)
_asks: ContextVar[bool] = ContextVar("asks", default=False)


class Recorder(BaseConnector):
    """A host that answers questions and keeps everything else in `sent`."""

    handles_execution = True

    def __init__(self, state: State, host: Any) -> None:
        super().__init__(state, host)
        self.sent: list[str] = []

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
        text = command.get_raw_value()
        if _asks.get():
            answers: Mapping[str, str] = self.host.data.get("answers")
            answer = next((said for key, said in answers.items() if key in text), _of_bare(text))
            return True, CommandOutput([OutputLine("stdout", x) for x in answer.splitlines()])
        self.sent.append(f"{text}\n{given.get('_stdin') or ''}".rstrip("\n"))
        return not text.startswith("echo 'refused:"), CommandOutput([])

    def put_file(self, *_: Any, **__: Any) -> bool:
        raise AssertionError("files travel as standard input")

    def get_file(self, *_: Any, **__: Any) -> bool:
        raise AssertionError("nothing is fetched")


def _of_bare(text: str) -> str:
    """What a bare host says of files and of units."""
    absent = "".join(f"absent - - - - - {path}\n" for path in _FILE.findall(text))
    units = _UNITS.search(text)
    names = units[1].split() if units else []
    return absent + "".join(f"Id={name}\n{_STOPPED}" for name in names)


@contextmanager
def _marked() -> Iterator[None]:
    real = pyinfra_facts._get_fact

    def asking(*arguments: Any, **keywords: Any) -> Any:
        token = _asks.set(True)
        try:
            return real(*arguments, **keywords)
        finally:
            _asks.reset(token)

    pyinfra_facts._get_fact = asking
    try:
        yield
    finally:
        pyinfra_facts._get_fact = real


def sent(step: Callable[[], None], name: str, data: dict[str, Any]) -> list[str]:
    """The commands that `step` would send to the host `name`, in order."""
    inventory = Inventory(([(name, data)], {}))  # type: ignore[no-untyped-call]
    for host in inventory:
        host.connector_cls = Recorder
    state = State(inventory, Config())  # type: ignore[no-untyped-call]
    with _marked():
        ctx_inventory.set(inventory)  # type: ignore[no-untyped-call]
        connect_all(state)
        add_deploy(state, step)
        with suppress(PyinfraError):  # raised when the host refused, and none remains
            run_ops(state)
        recorder = next(iter(inventory)).connector
        assert isinstance(recorder, Recorder)
        disconnect_all(state)
    return recorder.sent
