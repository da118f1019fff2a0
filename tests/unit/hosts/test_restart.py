"""A restart of replicas takes one host after the other, and ends at the first that fails."""

from __future__ import annotations

from typing import Any

import pytest
from pyinfra.api.operation import add_op
from pyinfra.api.state import State

from tests.unit.connector import InProcess, executed
from vllm_cluster.operations import order

UNIT = (
    "Id=vllm.service\nLoadState={}\nActiveState=active\nSubState=running\n"
    "UnitFileState=enabled\nNeedDaemonReload=no\nResult=success\n"
)
# What fails -> what the host says of its unit, and what it does not do.
FAILURES = {
    "the start": ("loaded", "systemctl start"),
    "the stop": ("loaded", "systemctl stop"),
    "a unit that is not there": ("not-found", "refused"),
}


class Replica(InProcess):
    """A host with vLLM that fails at `fails`, and keeps what it was told to do."""

    def __init__(self, state: State, host: Any) -> None:
        super().__init__(state, host)
        self.sent: list[str] = []

    def answer(self, command: str, stdin: str) -> tuple[bool, str]:  # noqa: ARG002
        load, fails = self.host.data.get("about")
        if "systemctl show --property" in command:
            return True, UNIT.format(load)
        self.sent.append(command)
        return not (fails and fails in command) and "refused" not in command, ""


def restarted(about: dict[str, tuple[str, str]]) -> tuple[dict[str, list[str]], list[str]]:
    """What each host was told to do in a restart of all, and the hosts that did not fail."""
    hosts = [(name, {"about": each}) for name, each in about.items()]

    def add(state: State) -> None:
        add_op(state, order.restarted, name="Restart", units=["vllm.service"], _serial=True)

    sent = {}
    with executed(hosts, Replica, add) as state:
        left = sorted(host.name for host in state.active_hosts)
        for host in state.inventory:
            assert isinstance(host.connector, Replica)
            sent[host.name] = host.connector.sent
    return sent, left


@pytest.mark.parametrize("about", FAILURES.values(), ids=FAILURES)
def test_a_common_cause_takes_down_one_host_and_no_more(about: tuple[str, str]) -> None:
    sent, left = restarted(dict.fromkeys("abc", about))
    assert left == []
    [failed] = [name for name, each in sent.items() if "is left as it is" not in each[0]]
    for name in {*sent} - {failed}:
        [refused] = sent[name]
        assert f"the restart of {failed} failed, so this host is left as it is" in refused


def test_what_failed_in_one_run_does_not_hold_in_the_next() -> None:
    assert restarted(dict.fromkeys("ab", ("loaded", "systemctl start")))[1] == []
    sent, left = restarted(dict.fromkeys("ab", ("loaded", "")))
    assert left == ["a", "b"]
    for each in sent.values():
        assert each[0] == "systemctl stop vllm.service"
        assert "; systemctl start vllm.service ||" in each[-1]
