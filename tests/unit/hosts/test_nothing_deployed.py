"""Stop, start and restart: what is said at the end, and where nothing is deployed, or not all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.deploy import add_deploy, deploy
from pyinfra.api.state import State
from pyinfra.context import host as this

from tests.unit.connector import InProcess, executed
from vllm_cluster.operations import refuse, units
from vllm_cluster.operations.units import Unit
from vllm_cluster.steps import here, order

UNITS = {"a": ("ray-head", "vllm"), "b": ("ray-worker",)}
BARE = "nothing is deployed here yet; `pyinfra INVENTORY deploys/cluster.py` deploys"


class Host(InProcess):
    """A host with its units, running, or with none; it keeps what it was told to do."""

    def __init__(self, state: State, host: Any) -> None:
        super().__init__(state, host)
        self.sent: list[str] = []

    def answer(self, command: str, stdin: str) -> tuple[bool, str]:  # noqa: ARG002
        if "ExecStart" in command:
            return True, "--port=8000\n"
        if "systemctl show --property" in command:
            load = "loaded" if self.host.data.get("deployed") else "not-found"
            names = [w.rstrip(";'") for w in command.split() if w.rstrip(";'").endswith(".service")]
            return True, "".join(_shown(name, load) for name in dict.fromkeys(names))
        self.sent.append(command)
        return "refused" not in command, ""


def _shown(name: str, load: str) -> str:
    return (
        f"Id={name}\nLoadState={load}\nActiveState=active\nSubState=running\n"
        "UnitFileState=enabled\nNeedDaemonReload=no\nResult=success\n\n"
    )


def ran(step: str, monkeypatch: pytest.MonkeyPatch, **deployed: bool) -> dict[str, list[str]]:
    """What each host was told to do; `deployed`: which has its units."""
    monkeypatch.setattr(refuse, "_ends", {})
    monkeypatch.setattr(refuse, "_now", {})
    hosts = [(name, {"deployed": deployed[name]}) for name in UNITS]

    def add(state: State) -> None:
        add_deploy(state, _steps(monkeypatch)[step])

    sent = {}
    with executed(hosts, Host, add, FAIL_PERCENT=0) as state:
        for host in state.inventory:
            assert isinstance(host.connector, Host)
            sent[host.name] = host.connector.sent
    return sent


def _steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan = SimpleNamespace(backend="ray", shutdown_timeout_s=5)
    monkeypatch.setattr(here, "plan", lambda: plan)
    monkeypatch.setattr(
        here, "this", lambda: SimpleNamespace(units=UNITS[this.name], address="10.0.0.1")
    )
    return {
        "stop": order.stop_step,
        "start": order.start_again_step,
        "restart": order.restart_step,
        "deploy": _deploy,
    }


@deploy("Ray and vLLM")
def _deploy() -> None:
    ours = [Unit(f"{name}.service") for name in here.this().units]
    units.active(units=ours, serves=here.this().address)


@pytest.mark.parametrize("step", ["stop", "start", "restart"])
def test_bare_hosts_are_told_as_such_once_and_left_alone(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = ran(step, monkeypatch, a=False, b=False)
    assert all("refused" in each for every in sent.values() for each in every)
    assert refuse.told() == [f"refused on a, b: {BARE}"]


@pytest.mark.parametrize("step", ["start", "restart"])
def test_one_bare_host_keeps_the_others_from_stopping(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = ran(step, monkeypatch, a=True, b=False)
    assert sent["a"] == []
    assert refuse.told() == [f"refused on b: {BARE}"]


def test_one_bare_host_keeps_no_other_from_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = ran("stop", monkeypatch, a=True, b=False)
    stops = [words for words in sent["a"] if words.startswith("systemctl stop")]
    assert stops == ["systemctl stop vllm.service", "systemctl stop ray-head.service"]
    assert sent["b"] == []
    assert refuse.told() == []


@pytest.mark.parametrize(
    ("step", "took"),
    [("start", ""), ("restart", "; its start took 0 s"), ("deploy", "; its start took 0 s")],
)
def test_the_last_word_is_where_vllm_answers_by_what_lies_on_the_host(
    step: str, took: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Host.answer

    def answer(self: Host, command: str, stdin: str) -> tuple[bool, str]:
        good, said = real(self, command, stdin)
        return good, said if step == "start" else said.replace("=active", "=inactive")

    monkeypatch.setattr(Host, "answer", answer)
    ran(step, monkeypatch, a=True, b=True)
    assert refuse.told() == [f"a: vLLM answers at http://10.0.0.1:8000/v1{took}"]


def test_a_deploy_that_starts_nothing_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    ran("deploy", monkeypatch, a=True, b=True)
    assert refuse.told() == []


def test_a_start_that_fails_is_said_to_answer_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Host.answer

    def answer(self: Host, command: str, stdin: str) -> tuple[bool, str]:
        good, said = real(self, command, stdin)
        return good and "start vllm" not in command, said.replace("=active", "=inactive")

    monkeypatch.setattr(Host, "answer", answer)
    ran("start", monkeypatch, a=True, b=True)
    assert refuse.told() == []
