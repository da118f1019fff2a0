"""The hosts' own program, on a host that is a directory, with a systemctl that writes down."""

from __future__ import annotations

import fcntl
import json
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.generations.machine import ENV, THEIRS, TOOL, UNIT, Machine
from vllm_cluster.plan import generations
from vllm_cluster.plan.generations import Record
from vllm_cluster.plan.owned import parse


def journal(machine: Machine, text: str) -> Path:
    """The record for `down`."""
    path = machine.root / "etc/vllm-cluster/owned/journal"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that serves g1 and has g2 beside it, to be copied."""
    folder = tmp_path_factory.mktemp("head")
    made = Machine(folder)
    made.lay("g1", vllm="one", ray_head="one")
    made.serve("g1")
    made.lay("g2", vllm="two", ray_worker="two")
    made.calls()
    return folder


@pytest.fixture
def machine(first: Path, tmp_path: Path) -> Machine:
    """The same, of a test's own."""
    shutil.copytree(first, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Machine(tmp_path)


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
    machine.run("over", "g2", "12.5")
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
    path = machine.state / "g2/generation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "since_s": 1}))
    machine.run("verdict", "failed", "no completion")
    judged_s = machine.kept().records["g2"].since_s
    assert judged_s is not None
    assert judged_s > 1
    machine.run("back")
    found = machine.kept().records["g2"]
    assert (found.status, found.reason, found.since_s) == ("failed", "no completion", judged_s)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (THEIRS, "exists and was not written by vllm-cluster; move it away and run again"),
        ("", "is a link and shall be a file; move it away and run again"),
    ],
)
def test_somebodys_unit_or_mask_in_the_way_is_named(
    machine: Machine, text: str, words: str
) -> None:
    machine.run("free", "g2")
    machine.put("ray-worker", text)
    good, said = machine.shell(f"{machine.program} free g2")
    assert not good
    assert said.strip() == f"{UNIT.format('ray-worker')} {words}"
    assert machine.calls() == []


def test_a_units_file_of_a_package_is_in_the_way_too(machine: Machine) -> None:
    at = machine.package("ray-worker")
    words = f"{at} is somebody else's ray-worker.service; remove it or give it another name"
    for command, stdin in (("free g2", ""), ("lay g3", '{"UNIT": ["644", ""]}')):
        text = stdin.replace("UNIT", UNIT.format("ray-worker"))
        good, said = machine.shell(f"{machine.program} {command}", text)
        assert not good
        assert words in said
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.calls()
    machine.run("halt")
    machine.run("place", "g2", fails=True)
    machine.run("back")
    assert not any("ray-worker" in call for call in machine.calls())
    assert not (machine.root / UNIT.format("ray-worker").lstrip("/")).exists()


def test_a_unit_of_ours_whose_file_somebody_took_away_is_still_ours(machine: Machine) -> None:
    machine.package("ray-worker")
    at = UNIT.format("ray-worker")
    (machine.root / "fragments/ray-worker.service").write_text(f"{at}\n")
    machine.run("free", "g2")
    machine.run("place", "g2")
    assert (machine.root / at.lstrip("/")).exists()


def test_an_empty_file_and_one_that_can_have_no_mark_are_in_nobodys_way(machine: Machine) -> None:
    path = "/etc/vllm-cluster/vllm/of.json"
    unit = ["644", "# Managed by vllm-cluster\n"]
    laid = {path: ["644", "[1]\n"], UNIT.format("ray-worker"): unit}
    machine.run("lay", "g3", stdin=json.dumps(laid))
    for name, text in ((path, "[]\n"), (UNIT.format("ray-worker"), "\n")):
        file = machine.root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    machine.run("free", "g3")
    machine.run("place", "g3")
    assert machine.text(path) == "[1]\n"


@pytest.mark.parametrize("text", [THEIRS, ""])
def test_what_somebody_puts_there_during_a_switch_outlives_it(machine: Machine, text: str) -> None:
    """Neither stopped, nor written over, nor removed or started by the way back."""
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    theirs = [machine.put("ray-worker", text), machine.put("ray-head", text)]
    before = [(file.is_symlink(), file.read_text()) for file in theirs]
    machine.calls()
    machine.run("halt")
    machine.run("place", "g2", fails=True)
    machine.run("back")
    assert [(file.is_symlink(), file.read_text()) for file in theirs] == before
    assert not any("ray-" in call for call in machine.calls())
    assert "one" in machine.text(UNIT.format("vllm"))
    assert (machine.kept().current, machine.kept().pending) == ("g1", None)


def test_the_oldest_are_forgotten_with_their_images_alone(machine: Machine) -> None:
    for number, image in ((2, "sha256:1"), (3, "sha256:3"), (4, "sha256:4")):
        name = f"g{number}"
        machine.lay(name, vllm=name)
        machine.run("adopt", name, json.dumps({"number": number, "image": image}))
    journal(machine, "image\tsha256:1\tabsent\n")
    machine.run("adopt", "g3", "{}")  # went back once
    machine.calls()
    machine.run("prune", "1")
    assert set(machine.kept().records) == {"g3", "g4"}
    # g1's image is g2's too, and g2 goes with it.
    assert [call for call in machine.calls() if call.startswith("docker")] == [
        "docker image rm vllm-cluster/kept:g2", "docker image rm sha256:1",
        "docker image rm vllm-cluster/kept:g1", "docker image rm sha256:1",
    ]  # fmt: skip


def test_the_last_other_one_that_served_stays_when_newer_ones_failed(machine: Machine) -> None:
    machine.lay("g0", vllm="zero")
    machine.run("adopt", "g0", json.dumps({"number": 0}))
    machine.run("adopt", "g1", "{}")
    for number in (2, 3, 4):
        name = f"g{number}"
        machine.lay(name, vllm=name)
        machine.run("begin", name, "g1", json.dumps({"number": number}))
        machine.run("verdict", "failed", "no completion")
        machine.run("back")
    machine.lay("g5", vllm="five")
    machine.run("adopt", "g5", json.dumps({"number": 5}))
    machine.calls()
    machine.run("prune", "3")
    assert set(machine.kept().records) == {"g1", "g3", "g4", "g5"}
    assert "g1" in machine.kept().trees
    assert not any("kept:g1" in call for call in machine.calls())
    found = generations.target({"a": machine.kept()}, "", None)
    assert isinstance(found, Record)
    assert found.id == "g1"


def test_an_image_that_somebody_else_brought_stays(machine: Machine) -> None:
    machine.run("adopt", "g2", json.dumps({"number": 2, "image": "sha256:2"}))
    for record in ("", "image\tsha256:21\tabsent\nfile\t/sha256:1\tabsent\n"):
        if record:
            journal(machine, record)
        machine.lay("g0", vllm="x")
        machine.run("adopt", "g0", json.dumps({"number": 0, "image": "sha256:1"}))
        machine.run("adopt", "g2", "{}")
        machine.calls()
        machine.run("prune", "2")
        gone = [call for call in machine.calls() if "image rm" in call]
        assert gone == ["docker image rm vllm-cluster/kept:g0"]


def test_every_file_that_it_places_is_written_down_for_down(machine: Machine) -> None:
    record = journal(machine, "wrote\t/half/a/line\t12")
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.run("halt")
    machine.run("place", "g2")
    assert "/half/a/line" not in parse(record.read_text().splitlines()).last("wrote")
    for _ in range(2):
        there = [path for path in machine.root.rglob("*") if path.is_file() and path != record]
        digests = {f"/{path.relative_to(machine.root)}": sha256(path.read_bytes()).hexdigest()
                   for path in there}  # fmt: skip
        wrote = parse(record.read_text().splitlines()).last("wrote")
        assert {path: wrote[path] for path in digests} == digests
        machine.run("back")


def test_accepted_it_can_still_go_back_and_is_over_after_a_boot(machine: Machine) -> None:
    for verb, ends in (("back", "g1"), ("boot", "g2")):
        machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
        machine.run("halt")
        machine.run("place", "g2")
        machine.run("accept", "g2", "60", "12.5")
        assert (machine.kept().current, machine.kept().phase) == ("g1", "accepted")
        machine.run(verb)
        found = machine.kept()
        assert (found.current, found.pending) == (ends, None)
        assert f"A={ends}" in machine.text(ENV)
    assert found.records["g2"].tokens_per_s == 12.5


def test_a_boot_that_goes_forward_asks_nothing_of_docker(machine: Machine) -> None:
    machine.run("begin", "g2", "g1", json.dumps({"number": 2, "image": "sha256:2"}))
    machine.run("place", "g2")
    machine.run("accept", "g2", "600")
    accepted = machine.calls()
    machine.run("boot")
    assert machine.kept().current == "g2"
    assert any(call.startswith("docker tag sha256:2 ") for call in accepted)
    assert not any(call.startswith("docker") for call in machine.calls())


def test_what_was_undone_cannot_be_over(machine: Machine) -> None:
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.run("back")
    machine.run("over", "g2", fails=True)
    machine.run("accept", "g2", "60", fails=True)
    assert machine.kept().current == "g1"


def test_a_way_back_that_was_not_finished_leaves_when_its_target_served(machine: Machine) -> None:
    machine.run("adopt", "g2", json.dumps({"number": 2}))
    served_s = machine.kept().records["g1"].good_s
    assert served_s is not None
    machine.run("begin", "g1", "g2", json.dumps({"number": 1}))
    machine.run("halt")
    machine.run("verdict", "failed", "no completion")
    machine.run("back")
    assert machine.kept().records["g1"].good_s == served_s
    machine.run("begin", "g3", "g2", json.dumps({"number": 3}))
    machine.run("back")
    machine.run("note", "g1", "left", "by alice")
    records = machine.kept().records
    assert (records["g3"].good_s, records["g1"].good_s) == (None, None)


class Waiting:
    """The program's `wait` in this process, with time that passes only while it sleeps."""

    def __init__(self, machine: Machine, folder: Path, patch: pytest.MonkeyPatch) -> None:
        for name, value in machine.environment.items():
            patch.setenv(name, value)
        self.slept: list[float] = []
        self.then: Callable[[], object] = lambda: None
        self.program = runpy.run_path(str(TOOL))
        self.names = self.program["wait"].__globals__
        clock = SimpleNamespace(
            sleep=self._sleep, monotonic=lambda: sum(self.slept), time=time.time
        )
        self.names.update(LOCK=folder / "run" / "lock", time=clock)

    def _sleep(self, seconds: float) -> None:
        assert len(self.slept) < 1000
        self.slept.append(seconds)
        self.then()

    def __call__(self, *words: str) -> None:
        self.names["wait"](*words)

    def free(self) -> bool:
        """Whether a run could take the lock."""
        with self.names["LOCK"].open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True


@pytest.fixture
def waiting(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """A switch that came to its files, and whose run is dead."""
    machine.run("begin", "g2", "g1", json.dumps({"number": 2}))
    machine.run("halt")
    machine.run("place", "g2")
    for unit in ("vllm", "ray-worker"):
        machine.run("start", f"{unit}.service")
    return Waiting(machine, tmp_path, monkeypatch)


def test_a_way_back_that_fails_is_tried_until_it_succeeds(
    machine: Machine, waiting: Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    # No room for a file of g1: something is where its directory should be made.
    blocker = machine.root / UNIT.format("ray-head").lstrip("/")
    blocker.mkdir()
    free = []

    def mend() -> None:
        free.append(waiting.free())
        if len(free) == 3:
            blocker.rmdir()

    waiting.then = mend
    waiting()
    assert waiting.slept == [30] * 3
    assert free == [False] * 3
    assert capsys.readouterr().out.count("cannot be finished, tried again in 30 s: ") == 3
    assert (machine.kept().current, machine.kept().pending) == ("g1", None)
    assert machine.active() == {"vllm.service", "ray-head.service"}


def test_a_boot_that_cannot_go_back_leaves_it_to_a_unit(machine: Machine, waiting: Waiting) -> None:
    blocker = machine.root / UNIT.format("ray-head").lstrip("/")
    blocker.mkdir()
    machine.calls()
    machine.run("boot", fails=True)
    assert any(call.endswith("wait boot") for call in machine.calls())
    blocker.rmdir()
    waiting("boot")
    assert machine.kept().pending is None
    assert "went down" in machine.kept().records["g2"].reason


def test_what_was_accepted_goes_forward_when_its_units_outlive_the_heads_way_back(
    machine: Machine, waiting: Waiting
) -> None:
    machine.run("accept", "g2", "60")
    free = []
    waiting.then = lambda: free.append(waiting.free())
    waiting()
    assert sum(waiting.slept) == 60
    assert all(free)
    found = machine.kept()
    assert (found.current, found.pending) == ("g2", None)
    assert found.records["g2"].status == "good"


def test_what_was_accepted_goes_back_when_the_heads_session_ends(
    machine: Machine, waiting: Waiting
) -> None:
    machine.run("accept", "g2", "60")
    waiting.then = (machine.active_folder / "ray-worker.service").unlink
    waiting()
    assert len(waiting.slept) == 1
    found = machine.kept()
    assert (found.current, found.pending) == ("g1", None)
    assert "A=g1" in machine.text(ENV)
    assert found.records["g2"].status == "interrupted"


def test_what_the_next_run_finished_is_left_alone(machine: Machine, waiting: Waiting) -> None:
    machine.run("accept", "g2", "60")
    waiting.then = lambda: machine.run("over", "g2")
    waiting()
    assert len(waiting.slept) == 1
    assert machine.kept().current == "g2"


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
    assert pin.exists(), "it is the way back"
    machine.run("note", "g2", "left", "rolled back by alice")
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
