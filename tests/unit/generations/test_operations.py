"""pyinfra's own run over two hosts that are directories: from a first deploy to a way back."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.command import StringCommand
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.deploy import add_deploy, deploy
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import State, StateStage
from pyinfra.context import ctx_inventory

from tests.unit.connector import InProcess
from tests.unit.generations.machine import ENV, THEIRS, UNIT, Machine
from vllm_cluster.control import deploys
from vllm_cluster.facts.units import ServedPort, UnitState
from vllm_cluster.operations import generations, order, owned, refuse, served
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.operations.switching import Switch
from vllm_cluster.steps import here

UNITS = {"a": ("ray-head", "vllm"), "b": ("ray-worker",)}
RECORD = {"image": "sha256:1", "model": "/", "vllm": "1", "head": "a", "hosts": ["a", "b"]}


class OnDirectory(InProcess):
    """Runs what is sent to a host on the directory that it is."""

    def answer(self, command: str, stdin: str) -> tuple[bool, str]:
        # The program is on a host from its first deploy on.
        text = re.sub(r"^\[ ! -x \S+ \] \|\| ", "", command)
        machine: Machine = self.host.data.get("machine")
        text = text.replace("state open /", f"state open {machine.root}/")
        good, said = machine.shell(text, stdin + "\n" * bool(stdin))
        return good, said.replace(f" {machine.root}/", " /")


class Two:
    """Hosts a and b."""

    def __init__(self, folder: Path) -> None:
        self.machines = {name: Machine(folder / name) for name in UNITS}

    def run(self, step: Any, *, only: tuple[str, ...] = ("a", "b")) -> list[str]:
        """Run a deploy; the hosts that it left unfailed."""
        hosts = [(name, {"machine": self.machines[name]}) for name in only]
        inventory = Inventory((hosts, {}))  # type: ignore[no-untyped-call]
        for host in inventory:
            host.connector_cls = OnDirectory
        state = State(inventory, Config())  # type: ignore[no-untyped-call]
        ctx_inventory.set(inventory)  # type: ignore[no-untyped-call]
        connect_all(state)
        add_deploy(state, step)
        state.set_stage(StateStage.Execute)
        with suppress(PyinfraError):  # raised when no host remains
            run_ops(state)
        left = sorted(host.name for host in state.active_hosts)
        disconnect_all(state)
        return left

    def current(self) -> set[str | None]:
        return {machine.kept().current for machine in self.machines.values()}

    def started(self) -> None:
        """What the units' own step does at a first deploy."""
        for name, machine in self.machines.items():
            machine.run("place", next(iter(machine.kept().trees)))
            for unit in UNITS[name]:
                (machine.active_folder / f"{unit}.service").touch()


def deploying(identity: str, rate: float = 100.0, broken: str = "", retry: bool = False) -> Any:
    """What deploys/cluster.py does about generations, with files of `identity`."""
    load = json.dumps({"tokens_per_s": rate, "failed": []})

    def files(name: str) -> dict[str, File | Directory]:
        mark = "# Managed by vllm-cluster\n"
        made: dict[str, File | Directory] = {
            UNIT.format(u): File(f"{mark}{identity} {load} {broken}\n") for u in UNITS[name]
        }
        return {**made, ENV: File(f"{mark}A={identity}\n")}

    @deploy("Generations")
    def step() -> None:
        from pyinfra.context import host  # noqa: PLC0415  in a deploy

        generations.inspected()
        generations.finished()
        generations.allowed(identity=lambda: identity, retry=retry)
        generations.laid(identity=lambda: identity, files=lambda: files(host.name))
        generations.switched(switch=lambda: switch(identity), address="10.0.0.1")
        generations.recorded(identity=lambda: identity, record=lambda: RECORD)

    return step


def switch(identity: str) -> Switch:
    return Switch(
        to=identity, record=RECORD, head="a", units=UNITS, group=True, gpus=2, measure_s=1,
        measure_requests=1, slower_percent=20, join_timeout_s=5, start_timeout_s=5,
        undone_s=5, keep=3,
    )  # fmt: skip


class _Port(ServedPort):
    def command(self) -> StringCommand:
        return StringCommand("echo --port=8000")


@deploy("Rollback")
def rolling_back() -> None:
    generations.inspected()
    generations.finished()
    generations.returned(
        switch=lambda: switch(""), number=None, note="by alice", address="10.0.0.2"
    )


@deploy("Unfinished")
def finishing() -> None:
    generations.inspected()
    generations.finished()


@pytest.fixture(autouse=True, scope="module")
def _no_record_on_this_machine() -> Iterator[None]:
    """What `down` reads would be written to where this test runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owned, "FILES", 'own_file() { echo "owned $1"; }')
        yield


@pytest.fixture(scope="module")
def first(_no_record_on_this_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """g1 was deployed on bare hosts, and serves; to be copied."""
    folder = tmp_path_factory.mktemp("two")
    made = Two(folder)
    assert made.run(deploying("g1")) == ["a", "b"]
    assert made.current() == {"g1"}
    made.started()
    for machine in made.machines.values():
        machine.calls()
    return folder


@pytest.fixture
def two(first: Path, tmp_path: Path) -> Two:
    """The same, of a test's own."""
    shutil.copytree(first, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Two(tmp_path)


def test_a_second_run_of_the_same_changes_nothing(two: Two) -> None:
    assert two.run(deploying("g1")) == ["a", "b"]
    for machine in two.machines.values():
        assert machine.calls() == []
        assert machine.kept().records["g1"].number == 1


def test_another_generation_is_switched_to_on_both_and_back_again(two: Two) -> None:
    assert two.run(deploying("g2")) == ["a", "b"]
    assert two.current() == {"g2"}
    assert two.machines["b"].kept().records["g2"].number == 2
    assert two.run(rolling_back) == ["a", "b"], two.machines["a"].calls()
    assert two.current() == {"g1"}
    assert two.machines["a"].kept().records["g2"].status == "left"
    # The description that was left is not applied again unasked, and is when asked.
    assert two.run(deploying("g2")) == []
    assert two.current() == {"g1"}
    assert two.run(deploying("g2", retry=True)) == ["a", "b"]
    assert two.current() == {"g2"}


def test_a_switch_and_a_way_back_end_with_where_vllm_answers(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "ServedPort", _Port)
    monkeypatch.setattr(refuse, "_ends", {})
    for step, at in (
        (deploying("g2"), "10.0.0.1"),
        (rolling_back, "10.0.0.2"),
        (deploying("g1"), ""),
    ):
        monkeypatch.setattr(refuse, "_now", {})
        assert two.run(step) == ["a", "b"]
        # Not b, which has a worker alone.
        assert refuse.told() == [f"a: vLLM answers at http://{at}:8000/v1"] * bool(at)


def test_a_failure_ends_the_run_on_all_hosts_with_the_old_one_serving(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refuse, "_ends", {})
    assert two.run(deploying("g2", broken="broken")) == []
    # Not of b, whose worker did what it should.
    [failure] = [line for line in refuse.told() if line.startswith("failed")]
    assert failure.startswith("failed: generation 2: a: systemctl start ")
    assert two.current() == {"g1"}
    assert "A=g1" in two.machines["b"].text(ENV)
    assert two.run(deploying("g2", broken="broken")) == []
    assert not any("begin" in call for call in two.machines["a"].calls()[-1:])


@pytest.mark.parametrize("kept", [False, True])
def test_somebodys_own_file_is_refused_before_it_is_recorded_or_anything_stops(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, kept: bool
) -> None:
    """Also where the files of the description are kept since an earlier run."""
    if kept:
        assert two.run(deploying("g2")) == ["a", "b"]
        assert two.run(deploying("g1")) == ["a", "b"]
    b = two.machines["b"]
    theirs = b.put("ray-worker")
    before = [each.active() for each in two.machines.values()]
    monkeypatch.setattr(owned, "FILES", 'own_file() { docker owned "$1"; }')
    b.calls()
    assert two.run(deploying("g2")) == []
    assert two.current() == {"g1"}
    assert theirs.read_text() == THEIRS
    assert [each.active() for each in two.machines.values()] == before
    refusal = f"refused: {UNIT.format('ray-worker')} exists and was not written by vllm-cluster"
    assert f"{refusal}; move it away and run again" in caplog.text
    assert b.calls() == []


def test_a_run_over_some_of_the_hosts_does_not_switch(two: Two) -> None:
    assert two.run(deploying("g2"), only=("b",)) == []
    assert two.current() == {"g1"}


def test_a_switch_that_was_cut_off_is_finished_first(two: Two) -> None:
    for machine in two.machines.values():
        machine.lay("g2", vllm="x", ray_worker="x")
        machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
        machine.run("halt")
        machine.run("place", "g2")
    assert two.run(deploying("g1")) == ["a", "b"]
    for name, machine in two.machines.items():
        assert machine.kept().pending is None
        assert machine.active() == {f"{unit}.service" for unit in UNITS[name]}


def cut_off_after_accepting(two: Two, *, decided: bool) -> None:
    """The run died when b had accepted: before the head's word, or after it."""
    for name, machine in two.machines.items():
        machine.lay("g2", **{unit.replace("-", "_"): "x" for unit in UNITS[name]})
        machine.run("begin", "g2", "g1", json.dumps({"number": 2, **RECORD}))
        machine.run("halt")
        machine.run("place", "g2")
        machine.run("start", *(f"{unit}.service" for unit in UNITS[name]))
    two.machines["b"].run("accept", "g2", "60")
    if decided:
        two.machines["a"].run("over", "g2")


@pytest.mark.parametrize("decided", [True, False])
def test_an_accepted_switch_is_finished_as_its_head_has_it(two: Two, *, decided: bool) -> None:
    cut_off_after_accepting(two, decided=decided)
    end = "g2" if decided else "g1"
    assert two.run(finishing) == ["a", "b"]
    assert two.current() == {end}
    for machine in two.machines.values():
        assert machine.kept().pending is None
        assert f"A={end}" in machine.text(ENV)


@pytest.fixture
def _described(monkeypatch: pytest.MonkeyPatch) -> None:
    """What deploys/stop.py and its like know of a description, and of the units on a host."""
    from pyinfra.context import host  # noqa: PLC0415  in an operation

    def read(units: list[str], **_: Any) -> dict[str, UnitState]:
        active = host.data.get("machine").active()
        states = {unit: "active" if unit in active else "inactive" for unit in units}
        return {
            unit: UnitState("loaded", state, "", "enabled", False, "")
            for unit, state in states.items()
        }

    plan = SimpleNamespace(backend="ray", shutdown_timeout_s=5)
    monkeypatch.setattr(here, "plan", lambda: plan)
    monkeypatch.setattr(
        here, "this", lambda: SimpleNamespace(units=UNITS[host.name], address="10.0.0.1")
    )
    monkeypatch.setattr(order, "_read", read)


@pytest.mark.usefixtures("_described")
@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("name", ["stop", "start", "restart"])
def test_what_stops_or_starts_finishes_a_switch_first(
    two: Two, name: str, *, decided: bool
) -> None:
    """A worker that has accepted takes the end of its units for the end of its head's."""
    cut_off_after_accepting(two, decided=decided)

    @deploy(name)
    def step() -> None:
        runpy.run_path(str(deploys.folder() / f"{name}.py"))

    assert two.run(step) == ["a", "b"]
    for host, machine in two.machines.items():
        assert machine.kept().pending is None
        # As the unit does that waits for the end of the run's lock.
        machine.run("back")
        running = () if name == "stop" else UNITS[host]
        assert machine.active() == {f"{unit}.service" for unit in running}
    assert two.current() == {"g2" if decided else "g1"}


@pytest.mark.usefixtures("_described")
@pytest.mark.parametrize("name", ["docker", "gpu"])
def test_a_part_that_restarts_ray_finishes_a_switch_first(
    two: Two, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off_after_accepting(two, decided=True)
    seen = []
    for part in (f"{name}.{name}_step", "gpu.gpu_kept_step"):
        monkeypatch.setattr(f"vllm_cluster.steps.{part}", lambda: seen.append("the part"))

    @deploy(name)
    def step() -> None:
        runpy.run_path(str(deploys.folder() / f"{name}.py"))

    assert two.run(step) == ["a", "b"]
    assert seen
    assert [machine.kept().pending for machine in two.machines.values()] == [None, None]
    assert two.current() == {"g2"}


def test_without_the_head_an_accepted_switch_is_left_as_it_is(two: Two) -> None:
    cut_off_after_accepting(two, decided=True)
    assert two.run(finishing, only=("b",)) == []
    assert two.machines["b"].kept().phase == "accepted"
    assert "A=g2" in two.machines["b"].text(ENV)


def test_a_rollback_uses_the_roles_of_what_it_goes_back_to(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = {"units": {"a": ["vllm"], "b": ["vllm"]}, "group": False, "gpus": 8}
    for machine in two.machines.values():
        machine.run("adopt", "g0", json.dumps({**RECORD, **then, "number": 0}))
        machine.lay("g0", vllm="x")
        machine.run("adopt", "g1", "{}")
    seen: list[Switch] = []

    def noted(*words: Any) -> str:
        seen.append(words[2])
        return ""

    monkeypatch.setattr(generations, "run", noted)
    assert two.run(rolling_back) == ["a", "b"]
    (done,) = seen
    assert done.units == {"a": ("vllm",), "b": ("vllm",)}
    assert (done.to, done.group, done.gpus) == ("g0", False, 8)
