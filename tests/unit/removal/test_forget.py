"""Who left is struck off the records of the others, and no other run writes them meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.doctor.here import description
from vllm_cluster.commands import down
from vllm_cluster.control import run_lock
from vllm_cluster.plan.members import Members
from vllm_cluster.removal import run
from vllm_cluster.removal.action import Removal
from vllm_cluster.removal.run import Outcome

LAB = Path(__file__).parents[3] / "inventories" / "lab.yaml"
FOUND = Members("lab", {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}, {"node-c": "10.0.0.3"})


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order, on hosts that remember node-c."""
    events: list[str] = []

    @contextmanager
    def holding(_what: str, roots: Mapping[str, Any]) -> Iterator[run_lock.Lock]:
        events.append(f"locked {' '.join(roots)}")
        held = run_lock.Lock()
        yield held
        events.append(" ".join(["free", *(f"of {name}" for name in sorted(held.gone))]))

    def write(_argv: list[str], _text: str, _limit_s: float) -> subprocess.CompletedProcess[str]:
        events.append("written")
        return subprocess.CompletedProcess([], 0, "", "")

    def remove(jobs: Mapping[str, Any], *_words: Any) -> dict[str, Outcome]:
        events.append(f"cleaned {' '.join(jobs)}")
        return {name: Outcome() for name in jobs}

    def look(_cluster: Any, targets: dict[str, Any], _options: Any) -> Any:
        action: Any = object()
        removals = {name: Removal((action,), (), ()) for name in targets}
        return down._Look(targets, dict.fromkeys(targets, action), removals)

    monkeypatch.setattr(run_lock, "holding", holding)
    monkeypatch.setattr(down, "_members", lambda _cluster, known: dict.fromkeys(known, FOUND))
    monkeypatch.setattr(down, "_look", look)
    monkeypatch.setattr(down, "_show", lambda *_words: None)
    monkeypatch.setattr(run, "run", write)
    monkeypatch.setattr(run, "remove", remove)
    return events


def test_a_host_that_is_gone_for_good_is_forgotten_under_the_lock(done: list[str]) -> None:
    words = [str(LAB), "--forget", "--host", "node-c"]
    assert CliRunner().invoke(down.command, words).exit_code == 0
    assert done == ["locked node-a node-b", "written", "written", "free"]


def test_a_host_that_was_cleaned_is_forgotten_before_the_lock_is_free(done: list[str]) -> None:
    words = [str(LAB), "--yes", "--host", "node-c"]
    assert CliRunner().invoke(down.command, words).exit_code == 0
    assert done == [
        "locked node-a node-b node-c", "cleaned node-c", "written", "written", "free of node-c",
    ]  # fmt: skip


def test_a_host_of_the_description_is_cleaned_under_its_own_lock(done: list[str]) -> None:
    words = [str(LAB), "--yes", "--host", "node-b"]
    assert CliRunner().invoke(down.command, words).exit_code == 0
    assert done == ["locked node-b", "cleaned node-b", "free of node-b"]


def test_at_the_end_of_all_hosts_it_is_told_what_this_machine_keeps(
    done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = description(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    measured = tmp_path / "state" / "vllm-cluster" / "network" / "lab.json"
    measured.parent.mkdir(parents=True)
    measured.write_text("{}")
    (tmp_path / ".secrets" / "lab").mkdir(parents=True)
    (tmp_path / "lab.lock.json").write_text("{}")
    one = CliRunner().invoke(down.command, [str(file), "--yes", "--host", "node-b"])
    assert "remain" not in one.stdout, "the cluster is still there"
    whole = CliRunner().invoke(down.command, [str(file), "--yes"])
    assert "Beside lab.yaml remain: .secrets/lab, lab.lock.json" in whole.stdout
    assert f"measurement of its network: {measured}" in whole.stdout
    assert done[-1] == "free of node-a of node-b of node-c"
