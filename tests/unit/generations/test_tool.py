"""The hosts' own program, on a host that is a directory, with a systemctl that writes down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.generations.machine import ENV, TOOL, UNIT, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A head that serves g1 and has g2 beside it."""
    made = Machine(tmp_path)
    made.lay("g1", vllm="one", ray_head="one")
    made.serve("g1")
    made.lay("g2", vllm="two", ray_worker="two")
    made.calls()
    return made


def test_its_digest_of_files_is_the_plans(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    expected = machine.lay("g1", vllm="one", ray_head="x")
    assert machine.kept().trees == {"g1": expected}


def test_a_switch_puts_files_and_roles_in_place_and_is_over_when_accepted(
    machine: Machine,
) -> None:
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    assert machine.kept().pending == "g2"
    calls = machine.calls()
    assert any(call.startswith("systemd-run") and "wait" in call for call in calls)
    machine.run("halt")
    assert machine.calls() == [
        "systemctl stop vllm.service", "systemctl stop ray-worker.service",
        "systemctl stop ray-head.service",
    ]  # fmt: skip
    machine.run("place", "g2")
    assert "two" in machine.text(UNIT.format("vllm"))
    assert machine.text(UNIT.format("ray-head")) == ""
    assert "A=g2" in machine.text(ENV)
    machine.run("accept", "g2", "12.5")
    found = machine.kept()
    assert (found.current, found.pending) == ("g2", None)
    assert found.records["g2"].tokens_per_s == 12.5
    # What is over is over: the waiter and a later boot find nothing to do.
    machine.calls()
    machine.run("back")
    machine.run("boot")
    assert machine.calls() == []


@pytest.mark.parametrize("verb", ["back", "boot"])
def test_a_switch_that_nobody_finished_is_undone(machine: Machine, verb: str) -> None:
    before = machine.text(UNIT.format("vllm")), machine.text(ENV)
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.run("halt", "vllm.service")
    machine.run("place", "g2")
    machine.calls()
    machine.run(verb)
    assert (machine.text(UNIT.format("vllm")), machine.text(ENV)) == before
    assert "one" in machine.text(UNIT.format("ray-head"))
    assert machine.text(UNIT.format("ray-worker")) == ""
    found = machine.kept()
    assert (found.current, found.pending) == ("g1", None)
    assert found.records["g2"].status == "interrupted"
    starts = [call for call in machine.calls() if call.startswith("systemctl start")]
    assert starts == [
        "systemctl start --no-block ray-head.service", "systemctl start --no-block vllm.service",
    ]  # fmt: skip


def test_a_verdict_outlives_the_connection(machine: Machine) -> None:
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.run("halt")
    machine.run("place", "g2")
    machine.run("verdict", "failed", "no completion")
    machine.run("back")
    found = machine.kept().records["g2"]
    assert (found.status, found.reason) == ("failed", "no completion")


def test_a_switch_that_touched_nothing_restarts_nothing(machine: Machine) -> None:
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.calls()
    machine.run("back")
    calls = machine.calls()
    assert not any(" stop " in call or " start " in call for call in calls)
    assert machine.kept().pending is None


def test_a_file_that_somebody_else_put_there_stays(machine: Machine) -> None:
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    theirs = machine.root / UNIT.format("ray-head").lstrip("/")
    theirs.write_text("[Service]\n")
    machine.run("place", "g2")
    assert theirs.read_text() == "[Service]\n"


def test_the_oldest_are_forgotten_with_their_images_alone(machine: Machine) -> None:
    for number, image in ((2, "sha256:1"), (3, "sha256:3"), (4, "sha256:4")):
        name = f"g{number}"
        machine.lay(name, vllm=name)
        machine.run("adopt", name, json.dumps({"number": number, "image": image}))
    machine.run("adopt", "g3", "{}")  # went back once
    machine.calls()
    machine.run("prune", "1")
    assert set(machine.kept().records) == {"g3", "g4"}
    # g1's image is g2's too, and g2 goes with it: it is removed with the last of its names.
    assert [call for call in machine.calls() if call.startswith("docker")] == [
        "docker image rm vllm-cluster/kept:g2", "docker image rm sha256:1",
        "docker image rm vllm-cluster/kept:g1", "docker image rm sha256:1",
    ]  # fmt: skip


def test_image_and_weights_of_a_kept_generation_are_held(machine: Machine, tmp_path: Path) -> None:
    models = tmp_path / "models"
    for folder in (".store/tiny@1", ".pins", "tiny"):
        (models / folder).mkdir(parents=True)
    (models / "tiny" / "1").symlink_to("../.store/tiny@1")
    record = {"number": 2, "image": "sha256:2", "model": str(models / "tiny/1")}
    machine.run("adopt", "g2", json.dumps(record))
    assert "docker tag sha256:2 vllm-cluster/kept:g2" in machine.calls()
    pin = models / ".pins/tiny@1/generation-g2"
    assert pin.exists()
    machine.run("adopt", "g1", "{}")
    machine.run("prune", "0")
    assert not pin.exists()


def test_nothing_is_halted_outside_a_switch(machine: Machine) -> None:
    machine.run("halt", fails=True)
    assert machine.calls() == []


def test_python_runs_it_as_the_resident_process_does(machine: Machine) -> None:
    for words in (["show"], ["halt"], ["lay", "g3"], ["note", "g1", "left", ""], ["show", "more"]):
        ends = []
        for program in ([sys.executable, "-I", TOOL], [machine.program]):
            done = subprocess.run(
                [*program, *words], input="{}", capture_output=True, text=True, check=False,
                env=machine.environment,
            )  # fmt: skip
            ends.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
        assert ends[0] == ends[1], words
