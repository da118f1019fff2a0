"""The hosts' own program, on a host that is a directory, with a systemctl that writes down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_cluster.plan.generations import Kept, read, tree_digest
from vllm_cluster.steps.render import templates

TOOL = templates() / "usr/local/lib/vllm-cluster/generation"
UNIT = "/etc/systemd/system/{}.service"
ENV = "/etc/vllm-cluster/cluster.env"


class Machine:
    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "root", folder / "generations"
        self.said = folder / "systemctl"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("systemctl", "systemd-run", "docker", "sync"):
            fake = programs / name
            # Nothing of a unit is active here, so each begin starts a waiter.
            fake.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.said}\n'
                            'case "$*" in *is-active*) exit 3;; esac\n')  # fmt: skip
            fake.chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "GENERATIONS": str(self.state),
            "GENERATIONS_ROOT": str(self.root),
        }

    def run(self, *words: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, TOOL, *words], input=stdin, capture_output=True, text=True,
            check=False, env=self.environment,
        )  # fmt: skip
        assert bool(done.returncode) == fails, done.stderr
        return done.stdout

    def lay(self, name: str, **units: str) -> str:
        files = {UNIT.format(unit.replace("_", "-")): ["644", f"# Managed by vllm-cluster\n{text}"]
                 for unit, text in units.items()}  # fmt: skip
        files[ENV] = ["644", f"# Managed by vllm-cluster\nA={name}\n"]
        self.run("lay", name, stdin=json.dumps(files))
        return tree_digest({path: (mode, body) for path, (mode, body) in files.items()})

    def kept(self) -> Kept:
        return read(self.run("show"))

    def text(self, path: str) -> str:
        file = self.root / path.lstrip("/")
        return file.read_text() if file.exists() else ""

    def calls(self) -> list[str]:
        lines = self.said.read_text().splitlines() if self.said.exists() else []
        self.said.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A head that serves g1 and has g2 beside it."""
    made = Machine(tmp_path)
    made.lay("g1", vllm="one", ray_head="one")
    made.run("place", "g1")
    made.run("adopt", "g1", json.dumps({"number": 1, "image": "sha256:1"}))
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
    assert machine.calls() == ["docker image rm sha256:1"]


def test_nothing_is_halted_outside_a_switch(machine: Machine) -> None:
    machine.run("halt", fails=True)
    assert machine.calls() == []
