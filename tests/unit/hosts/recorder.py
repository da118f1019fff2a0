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
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.deploy import add_deploy
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import State
from pyinfra.context import ctx_inventory

from tests.unit.connector import InProcess

_FILE = re.compile(r"^state (?:open|closed) (\S+?)'?$", re.MULTILINE)
_UNITS = re.compile(r"^systemctl show --property=Id,\S+ ([^;]+)")
_STOPPED = (
    "LoadState=loaded\nActiveState=inactive\nSubState=dead\nUnitFileState=disabled\n"
    "NeedDaemonReload=no\nResult=success\n"
)
_asks: ContextVar[bool] = ContextVar("asks", default=False)


class Recorder(InProcess):
    """A host that answers questions and keeps everything else in `sent`."""

    def __init__(self, state: State, host: Any) -> None:
        super().__init__(state, host)
        self.sent: list[str] = []

    def answer(self, command: str, stdin: str) -> tuple[bool, str]:
        if _asks.get():
            answers: Mapping[str, str] = self.host.data.get("answers")
            return True, next(
                (x for key, x in answers.items() if key in command), _of_bare(command)
            )
        self.sent.append(f"{command}\n{stdin}".rstrip("\n"))
        return not command.startswith("echo 'refused:"), ""


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
