"""A switch over two hosts that are directories: what is called where, and how each failure ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyinfra.api.host import Host
from pyinfra.api.state import State

from tests.unit.generations.machine import ENV, THEIRS, UNIT, Machine
from vllm_cluster.operations import switching
from vllm_cluster.operations.switching import Switch, run
from vllm_cluster.plan import last_words

RATE = '{{"tokens_per_s": {}, "failed": []}}'


class Cluster:
    """Hosts `a`, the head, and `b`; g1 serves."""

    def __init__(self, folder: Path, *, group: bool, copied: bool = False) -> None:
        self.group, self.lines, self.calls = group, [], []  # type: ignore[var-annotated]
        self.machines = {name: Machine(folder / name) for name in "ab"}
        self.lose: Callable[[str, str], str | None] = lambda _name, _text: None
        """Whether a call is lost `before` it reaches the host, or its answer `after`."""
        if copied:
            return
        self.lay("g1", 100.0)
        for machine in self.machines.values():
            machine.serve("g1")
            machine.calls()

    def lay(self, name: str, rate: float, head: str = "", worker: str = "") -> None:
        vllm = f"{name} {RATE.format(rate)} {head}"
        if self.group:
            self.machines["a"].lay(name, vllm=vllm, ray_head=name)
            self.machines["b"].lay(name, ray_worker=f"{name} {worker}")
        else:
            self.machines["a"].lay(name, vllm=vllm)
            self.machines["b"].lay(name, vllm=f"{name} {RATE.format(rate)} {worker}")

    def switch(self, **how: Any) -> str:
        ray = {"a": ("ray-head", "vllm"), "b": ("ray-worker",)}
        whole = {
            "to": "g2", "record": {"vllm": "2"}, "head": "a", "group": self.group,
            "units": ray if self.group else {"a": ("vllm",), "b": ("vllm",)}, "gpus": 2,
            "measure_s": 1, "measure_requests": 1, "slower_percent": 20.0, "join_timeout_s": 5,
            "start_timeout_s": 5, "undone_s": 5, "keep": 3, **how,
        }  # fmt: skip
        kept = {name: machine.kept() for name, machine in self.machines.items()}
        hosts = {name: self._host(name) for name in self.machines}
        state = SimpleNamespace(inventory=SimpleNamespace(get_host=hosts.get))
        return run(cast(State, state), hosts["a"], Switch(**whole), kept)

    def _host(self, name: str) -> Host:
        def shell(command: Any, **_: Any) -> tuple[bool, list[SimpleNamespace]]:
            text = str(command.get_raw_value())
            self.calls.append((name, text))
            lost = self.lose(name, text)
            if lost == "before":
                return False, []
            good, out = self.machines[name].shell(text)
            if lost == "after":
                return False, []
            return good, [SimpleNamespace(line=line) for line in out.splitlines()]

        host = SimpleNamespace(name=name, data={}, run_shell_command=shell, log=self.lines.append)
        return cast(Host, host)

    def serving(self) -> set[str | None]:
        return {machine.kept().current for machine in self.machines.values()}

    def placed(self) -> set[str]:
        return {machine.text(ENV).splitlines()[1] for machine in self.machines.values()}

    def assert_g1_serves_again(self, reason: str) -> None:
        assert self.serving() == {"g1"}
        assert self.placed() == {"A=g1"}
        for machine in self.machines.values():
            kept = machine.kept()
            assert kept.pending is None
            assert kept.records["g2"].status == "failed"
            assert reason in kept.records["g2"].reason
            units = machine.root / "etc/systemd/system"
            assert machine.active() == {path.name for path in units.iterdir()}


@pytest.fixture(autouse=True)
def _directories_are_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "_host", lambda state, name: state.inventory.get_host(name))


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Clusters to be copied, made when one is asked for."""

    @cache
    def made(group: bool) -> Path:
        folder = tmp_path_factory.mktemp("cluster")
        Cluster(folder, group=group)
        return folder

    return made


@pytest.fixture
def group(first: Callable[[bool], Path], tmp_path: Path) -> Cluster:
    return copied(first, tmp_path, group=True)


@pytest.fixture
def replicas(first: Callable[[bool], Path], tmp_path: Path) -> Cluster:
    return copied(first, tmp_path, group=False)


def copied(first: Callable[[bool], Path], folder: Path, *, group: bool) -> Cluster:
    shutil.copytree(first(group), folder, symlinks=True, dirs_exist_ok=True)
    return Cluster(folder, group=group, copied=True)


def losing(verb: str, host: str, when: str = "before") -> Callable[[str, str], str | None]:
    return lambda name, text: when if name == host and f"/generation {verb}" in text else None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_that_cannot_accept_takes_all_back(group: Cluster, when: str) -> None:
    group.lay("g2", 100.0)
    group.lose = losing("accept", "b", when)
    assert "it could not be accepted: b: " in group.switch()
    group.assert_g1_serves_again("it could not be accepted: b: ")


def test_a_head_that_says_no_takes_all_back(group: Cluster) -> None:
    group.lay("g2", 100.0)
    group.lose = losing("over", "a")
    assert "it could not be accepted: a: " in group.switch()
    group.assert_g1_serves_again("it could not be accepted: a: ")


def test_a_heads_lost_answer_is_asked_for(group: Cluster) -> None:
    group.lay("g2", 100.0)
    group.lose = losing("over", "a", "after")
    assert group.switch() == ""
    assert group.serving() == {"g2"}
    assert group.machines["b"].kept().pending is None


def test_nothing_is_taken_back_where_the_heads_word_is_unknown(group: Cluster) -> None:
    group.lay("g2", 100.0)
    lost = [losing("over", "a", "after"), losing("show", "a")]
    group.lose = lambda name, text: next(filter(None, (one(name, text) for one in lost)), None)
    said = group.switch()
    assert "a was lost when it was to decide" in said
    assert not any("/generation back" in text for _, text in group.calls)
    assert group.machines["a"].kept().current == "g2"
    assert group.machines["b"].kept().phase == "accepted"
    assert group.placed() == {"A=g2"}


def test_a_worker_that_hears_nothing_of_the_heads_word_takes_nothing_back(group: Cluster) -> None:
    group.lay("g2", 100.0)
    group.lose = losing("over", "b")
    assert group.switch() == ""
    assert group.machines["a"].kept().pending is None
    assert group.placed() == {"A=g2"}
    assert any(line.startswith("b: ") and "notes so by itself" in line for line in group.lines)
    # What the worker does after the time, or after a boot.
    group.machines["b"].run("boot")
    assert group.serving() == {"g2"}
    assert group.machines["b"].kept().pending is None


def test_workers_are_there_while_a_failed_one_drains(group: Cluster) -> None:
    group.lay("g2", 79.0)
    assert "slower" in group.switch()
    rounds = [text.rpartition(" ")[2] for _, text in group.calls if "/generation verdict" in text]
    assert rounds[:4] == ["vllm.service"] * 2 + ["ray-worker.service"] * 2
    assert len(rounds) == 6


def test_the_way_back_is_awaited_where_the_old_head_was(group: Cluster) -> None:
    units = {"a": ["ray-head", "vllm"], "b": ["ray-worker"]}
    for machine in group.machines.values():
        machine.run("adopt", "g1", json.dumps({"units": units, "group": True}))
    group.machines["a"].lay("g2", ray_worker="g2")
    group.machines["b"].lay("g2", ray_head="g2", vllm="g2 broken")
    said = group.switch(head="b", units={"a": ("ray-worker",), "b": ("ray-head", "vllm")})
    assert "The old one serves again" in said
    group.assert_g1_serves_again("vLLM did not start on b")


def test_nothing_serves_again_where_the_old_head_is_not_in_the_run(group: Cluster) -> None:
    units = {"dead": ["ray-head", "vllm"], "b": ["ray-worker"]}
    for machine in group.machines.values():
        machine.run("adopt", "g1", json.dumps({"head": "dead", "units": units, "group": True}))
    group.lay("g2", 100.0, head="broken")
    said = group.switch()
    assert "vLLM did not start on a" in said
    assert "ran on dead, which is not in this run: without it nothing serves" in said
    assert "serves again" not in said


def test_from_one_group_to_replicas_all_hosts_switch_together(group: Cluster) -> None:
    for machine in group.machines.values():
        machine.run("adopt", "g1", json.dumps({"group": True}))
        machine.lay("g2", vllm="g2")
    units = {"a": ("vllm",), "b": ("vllm",)}
    assert group.switch(group=False, units=units, measure_s=0) == ""
    assert group.serving() == {"g2"}
    for machine in group.machines.values():
        assert machine.active() == {"vllm.service"}
    halts = [text.rpartition("/generation ")[2] for _, text in group.calls if " halt" in text]
    assert halts[:2] == ["halt vllm.service"] * 2


def test_a_group_stops_vllm_workers_head_and_starts_the_other_way_round(group: Cluster) -> None:
    group.lay("g2", 95.0)
    assert group.switch() == ""
    assert group.serving() == {"g2"}
    assert group.placed() == {"A=g2"}
    order = [
        (name, text.rpartition("/generation ")[2])
        for name, text in group.calls
        if "/generation halt" in text or "/generation start" in text
    ]
    assert order == [
        ("a", "halt vllm.service"), ("b", "halt vllm.service"), ("a", "halt ray-worker.service"),
        ("b", "halt ray-worker.service"), ("a", "halt"), ("b", "halt"),
        ("a", "start ray-head.service"), ("b", "start ray-worker.service"),
        ("a", "start --wait vllm.service"),
    ]  # fmt: skip
    assert group.machines["a"].kept().records["g2"].tokens_per_s == 95.0
    assert group.machines["a"].kept().records["g2"].number == 2


def test_a_server_that_does_not_start_is_taken_back_on_all(group: Cluster) -> None:
    group.lay("g2", 100.0, head="broken")
    said = group.switch()
    assert "vLLM did not start on a" in said
    assert "The old one serves again" in said
    group.assert_g1_serves_again("vLLM did not start on a")


def test_a_reason_that_is_a_sentence_gets_no_second_full_stop(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_words, "why", lambda _lines: "RuntimeError: see above for details.")
    group.lay("g2", 100.0, head="broken")
    assert "see above for details. The old one serves again" in group.switch()


def test_a_slower_one_is_taken_back_and_a_little_slower_is_not(group: Cluster) -> None:
    group.lay("g2", 79.0)
    assert "79.0 tokens/s on a, 100.0 before: 21 % slower" in group.switch()
    group.assert_g1_serves_again("21 % slower")
    group.lay("g2", 81.0)
    assert group.switch() == ""


def test_a_worker_that_cannot_start_is_named(group: Cluster) -> None:
    group.lay("g2", 100.0, worker="broken")
    assert group.switch().startswith("generation 2: b: ")
    group.assert_g1_serves_again("b: ")


def test_without_a_measure_a_completion_suffices(group: Cluster) -> None:
    group.lay("g2", 1.0)
    assert group.switch(measure_s=0) == ""


def test_replicas_switch_one_after_the_other(replicas: Cluster) -> None:
    replicas.lay("g2", 100.0)
    assert replicas.switch() == ""
    assert replicas.serving() == {"g2"}
    done = [(name, word) for name, text in replicas.calls
            for word in ("halt", "load", "accept", "over") if f" {word}" in text]  # fmt: skip
    # Before anything is halted both are measured; b is halted only when a was judged.
    assert done == [
        ("a", "load"), ("b", "load"), ("a", "halt"), ("a", "load"), ("b", "halt"), ("b", "load"),
        ("b", "accept"), ("a", "over"), ("b", "over"),
    ]  # fmt: skip


def test_a_replica_that_fails_takes_the_others_back_that_had_switched(replicas: Cluster) -> None:
    replicas.lay("g2", 100.0, worker="broken")
    assert "vLLM did not start on b" in replicas.switch()
    replicas.assert_g1_serves_again("vLLM did not start on b")


class Slow:
    """Units of `b` answer only at the third look after they were put back."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, name: str, text: str) -> str | None:
        if name != "b" or "seq" not in text:
            return None
        self.looks += 1
        return "before" if self.looks < 3 else None


@pytest.mark.parametrize("fails", ["start", "rate", "accept"])
def test_a_replica_that_fails_is_back_before_one_that_answers_is_stopped(
    replicas: Cluster, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr("vllm_cluster.operations.switching.time.sleep", lambda _seconds: None)
    slow, lost = Slow(), losing("accept", "b") if fails == "accept" else lambda *_: None
    replicas.lose = lambda name, text: slow(name, text) or lost(name, text)
    replicas.lay("g2", 100.0, worker="broken" if fails == "start" else "")
    if fails == "rate":
        replicas.machines["b"].lay("g2", vllm=f"g2 {RATE.format(70.0)}")
    assert "The old one serves again" in replicas.switch()
    words = {"verdict": "/generation verdict", "back": "/generation back", "look": " $(seq "}
    way_back = [(name, word) for name, text in replicas.calls
                for word, part in words.items() if part in text]  # fmt: skip
    assert sorted(way_back[:2]) == [("a", "verdict"), ("b", "verdict")]
    assert way_back[2:] == [
        ("b", "back"), ("b", "look"), ("b", "look"), ("b", "look"), ("a", "back"), ("a", "look"),
    ]  # fmt: skip
    stops = [call for call in replicas.machines["a"].calls() if " stop " in call]
    assert len(stops) == 2, "for the new one, and for the old one"
    replicas.assert_g1_serves_again("b: " if fails == "accept" else "on b")


def test_replicas_all_know_the_verdict_before_the_first_goes_back(replicas: Cluster) -> None:
    """Where the run dies in between, one that had accepted goes back too, after a boot as well."""
    replicas.lay("g2", 100.0)
    replicas.lose = lambda name, text: (
        "before"
        if "/generation back" in text or (name == "a" and "generation over" in text)
        else None
    )
    assert "The way back failed on " in replicas.switch()
    for machine in replicas.machines.values():
        assert machine.active() == {"vllm.service"}
        assert machine.kept().phase == "halted"
        machine.run("boot")
    replicas.assert_g1_serves_again("it could not be accepted: a: ")


@pytest.mark.parametrize("verb", ["back", "verdict"])
def test_a_replica_that_cannot_go_back_keeps_no_other_from_it(replicas: Cluster, verb: str) -> None:
    """Its own way back is awaited by nobody; the other's is."""
    replicas.lay("g2", 100.0, worker="broken")
    lost = [losing("back", "b"), losing(verb, "b")]
    replicas.lose = lambda name, text: next(filter(None, (one(name, text) for one in lost)), None)
    assert "The way back failed on b: no words; the host goes back by itself" in replicas.switch()
    a, b = (replicas.machines[name] for name in "ab")
    assert (a.kept().current, a.kept().pending, b.kept().pending) == ("g1", None, "g2")
    assert a.kept().records["g2"].status == "failed"
    # As the unit does that waits for the end of the run's lock.
    b.run("back")
    assert replicas.serving() == {"g1"}
    assert b.active() == {"vllm.service"}


def test_an_old_replica_that_does_not_answer_is_named_and_the_others_go_back(
    replicas: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switching, "_awaited", lambda _hosts, name, _limit_s: name != "b")
    replicas.lay("g2", 100.0, worker="broken")
    assert "The old one was put back and does not answer yet on b" in replicas.switch()
    replicas.assert_g1_serves_again("vLLM did not start on b")


def test_a_replica_that_fails_first_leaves_the_second_untouched(replicas: Cluster) -> None:
    replicas.lay("g2", 100.0, head="broken")
    assert "vLLM did not start on a" in replicas.switch()
    replicas.assert_g1_serves_again("vLLM did not start on a")
    stops = [call for call in replicas.machines["b"].calls() if " stop " in call]
    assert stops == []


def test_a_rollback_notes_what_was_left_and_by_whom(group: Cluster) -> None:
    group.lay("g2", 100.0)
    assert group.switch() == ""
    note = ("left", "rolled back by alice")
    assert group.switch(to="g1", record={"number": 1}, note=note, measure_s=0) == ""
    for machine in group.machines.values():
        records = machine.kept().records
        assert (records["g2"].status, records["g2"].reason) == note
        assert records["g1"].status == "good"
        assert records["g1"].vllm == "1"


def test_what_the_way_back_needs_is_looked_for_before_anything_changes(group: Cluster) -> None:
    group.lay("g2", 100.0)
    said = group.switch(needs="false")
    assert "nothing was changed" in said
    assert group.serving() == {"g1"}
    assert group.machines["a"].kept().pending is None
    assert "stop" not in json.dumps(group.calls)


@pytest.mark.parametrize("text", [THEIRS, ""])
def test_somebodys_own_unit_ends_a_switch_before_anything_stops(group: Cluster, text: str) -> None:
    """The head moves to a host where somebody runs a vllm.service, or has masked it."""
    theirs = group.machines["b"].put("vllm", text)
    group.machines["a"].lay("g2", ray_worker="g2")
    group.machines["b"].lay("g2", ray_head="g2", vllm=f"g2 {RATE.format(100.0)}")
    units = {"a": ("ray-worker",), "b": ("ray-head", "vllm")}
    said = group.switch(head="b", units=units)
    assert f"nothing was changed: b: {UNIT.format('vllm')} " in said
    assert "move it away and run again" in said
    assert group.serving() == {"g1"}
    assert theirs.read_text() == text
    for machine in group.machines.values():
        assert not [call for call in machine.calls() if " stop " in call or " disable " in call]
    # Moved away, it is in nobody's way, and nothing is held against the description.
    theirs.unlink()
    assert "g2" not in group.machines["a"].kept().records
    assert group.switch(head="b", units=units, measure_s=0) == ""


def test_a_host_whose_tool_is_older_can_still_go_back(group: Cluster, tmp_path: Path) -> None:
    """`rollback` brings none: it must work with what the last deploy left."""
    for machine in group.machines.values():
        older = tmp_path / "older"
        older.write_text(
            f"#!/bin/bash\n[ $1 != free ] || {{ echo \"KeyError: 'free'\" >&2; exit 1; }}\n"
            f'exec {machine.program} "$@"\n'
        )
        older.chmod(0o755)
        machine.program = older
    group.lay("g2", 100.0)
    assert group.switch() == ""
    assert group.serving() == {"g2"}


def test_a_new_host_without_a_generation_ends_as_it_was(group: Cluster) -> None:
    b = group.machines["b"]
    for path in (b.state / "current.json", b.root / UNIT.format("ray-worker").lstrip("/")):
        path.unlink()
    for path in (b.state / "g1" / "files").rglob("*.service"):
        path.unlink()
    group.lay("g2", 100.0, head="broken")
    group.switch()
    assert b.kept().current is None
    assert b.text(UNIT.format("ray-worker")) == ""
