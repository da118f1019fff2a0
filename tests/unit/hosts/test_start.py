"""A start by a person ends a pause between starts, and joins a start that is past it."""

from __future__ import annotations

import pytest

from tests.unit.hosts.recorder import sent
from vllm_cluster.operations import order

UNIT = (
    "Id=vllm.service\nLoadState=loaded\nActiveState={}\nSubState=x\n"
    "UnitFileState=enabled\nNeedDaemonReload=no\nResult=success\nConfig vllm.service {}\n"
)


@pytest.mark.parametrize(
    ("active", "container", "wait", "does"),
    [
        ("activating", "", True, "restart"),
        ("activating", "", False, "restart --no-block"),
        ("activating", "cafe", True, "start"),
        ("activating", "cafe", False, ""),
        ("failed", "", True, "start"),
        ("active", "cafe", True, ""),
    ],
)
def test_a_start_waits_out_no_pause(active: str, container: str, does: str, *, wait: bool) -> None:
    def step() -> None:
        order.started(name="Start vLLM", units=["vllm.service"], wait=wait)

    told = sent(step, "node-a", {"answers": {"systemctl show": UNIT.format(active, container)}})
    if not does:
        assert told == []
        return
    held, started = told
    assert "attempt held vllm.service" in held
    assert f"; systemctl {does} vllm.service ||" in started
