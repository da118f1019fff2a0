"""One process runs the hosts' program for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.generations import resident
from tests.unit.generations.machine import TOOL, Machine
from vllm_cluster.steps import run_lock


@pytest.fixture(scope="session", autouse=True)
def _program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    script = tmp_path_factory.mktemp("program") / "generation"
    with resident.started(TOOL, script):
        Machine.program = script
        yield


@pytest.fixture(autouse=True)
def _no_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deploy run here would let the process of all tests end with its refusals."""
    monkeypatch.setattr(run_lock, "tell_last", lambda _state: None)
