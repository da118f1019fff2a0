"""A start that takes long is told now and then, and is none the worse for it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.host import Host
from pyinfra.api.operation import add_op
from pyinfra.api.state import State
from pyinfra.context import ctx_host

from tests.unit.connector import InProcess, executed
from vllm_cluster.operations import arguments, order, progress, units
from vllm_cluster.operations.arguments import Check
from vllm_cluster.plan.generations import Kept
from vllm_cluster.plan.model import Container

DOWN = (
    "Id=vllm.service\nLoadState=loaded\nActiveState=inactive\nSubState=dead\n"
    "UnitFileState=enabled\nNeedDaemonReload=no\nResult=success\n"
)
LOG = (
    "activating\nINFO 11-30 19:11:41 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
    "Loading shards:   0% | 0/5\rLoading shards:  40% | 2/5\r\n"
)
WAIT_S = 30
_TELLS = re.compile(r" for \d+ s\b")
_CHECK = Check("g2", Container("vllm", "image:2", (), ("serve", "m")), "/e", "/s")
_GIVEN: dict[Any, dict[str, Any]] = {
    order.started: {"units": ["vllm.service"]},
    units.active: {"units": [units.Unit("vllm.service")]},
    arguments.accepted: {"check": lambda: _CHECK},
}


class Slow(InProcess):
    """A host whose start ends when `until` is set; `says` answers how far it is."""

    def answer(self, command: str, stdin: str) -> tuple[bool, str]:  # noqa: ARG002
        says, until, good = self.host.data.get("how")
        if "systemctl show --property" in command:
            return True, DOWN
        if "systemctl is-active" in command:
            return says()  # type: ignore[no-any-return]
        if "systemctl start" in command or "docker run" in command:
            assert until.wait(WAIT_S)
            return good, "" if good else "its log"
        return True, ""


def lines_of(
    operation: Any, says: Callable[[], tuple[bool, str]], until: threading.Event,
    monkeypatch: pytest.MonkeyPatch, *, good: bool = True,
) -> tuple[list[str], bool]:  # fmt: skip
    """What was told during the start, and whether the run went well."""
    lines: list[str] = []

    def log(_host: Host, message: str, **_: Any) -> None:
        lines.append(message)
        if _TELLS.search(message):
            until.set()

    monkeypatch.setattr(Host, "log", log)

    def add(state: State) -> None:
        add_op(state, operation, **_GIVEN[operation])

    with executed([("a", {"how": (says, until, good)})], Slow, add) as state:
        well = bool(state.active_hosts)
    told = [_TELLS.sub(" for N s", line) for line in lines if _TELLS.search(line)]
    return told, well


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_pause_s", lambda _lasted_s: 0.001)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("operation", [order.started, units.active])
@pytest.mark.parametrize("good", [True, False])
def test_a_long_start_is_told_with_the_last_word_of_its_log(
    operation: Any, monkeypatch: pytest.MonkeyPatch, *, good: bool
) -> None:
    until = threading.Event()
    lines, well = lines_of(operation, lambda: (True, LOG), until, monkeypatch, good=good)
    assert lines[0] == "vllm.service: starting for N s: Loading shards:  40% | 2/5"
    assert well == good


@pytest.mark.usefixtures("_at_once")
def test_what_drains_first_is_not_shown_with_words_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = (True, LOG.replace("activating", "deactivating"))
    lines, _ = lines_of(order.started, lambda: said, threading.Event(), monkeypatch)
    assert lines[0] == "vllm.service: starting for N s: what ran before still ends"


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("how", ["raises", "fails"])
def test_a_host_that_cannot_be_asked_is_silent_and_starts(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, until = [], threading.Event()

    def says() -> tuple[bool, str]:
        asked.append(how)
        if len(asked) > 1:
            until.set()
        if how == "raises":
            raise OSError("no connection")
        return False, "journalctl: no such file"

    assert lines_of(order.started, says, until, monkeypatch) == ([], True)


@pytest.mark.usefixtures("_at_once")
def test_vllm_that_judges_its_arguments_for_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "seen", lambda _state: {"a": Kept(current="g1")})
    until = threading.Event()
    lines, well = lines_of(arguments.accepted, lambda: (True, ""), until, monkeypatch)
    assert lines[0] == "vLLM in the image reads its arguments and the model for N s"
    assert well


def test_a_quick_start_is_not_asked_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def says() -> tuple[bool, str]:
        raise AssertionError("asked")

    until = threading.Event()
    until.set()
    assert lines_of(order.started, says, until, monkeypatch) == ([], True)


def test_a_dry_run_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "telling", lambda *_: pytest.fail("told"))
    dry = SimpleNamespace(state=SimpleNamespace(is_executing=False))
    with ctx_host.use(dry), progress.starting("vllm.service"):
        pass


def test_after_two_minutes_it_is_told_half_as_often() -> None:
    assert [progress._pause_s(s) for s in (0, 119, 120, 3600)] == [15, 15, 30, 30]
