"""The lock's program with a real bash and flock, and what is said to the second operator."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.harness import await_true
from vllm_cluster.control import run_lock as control
from vllm_cluster.control.bearer import bearer
from vllm_cluster.plan import run_lock as lock
from vllm_cluster.plan.run_lock import Bearer, Busy, Held, answer, busy, holder, span

ALICE = Bearer("1", "alice", "laptop-7", "cluster.py")
BOB = Bearer("2", "bob", "desk-2", "restart.py")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program on a directory of the test's, patient for a moment only."""
    text = lock._HOLDER.replace("/run/vllm-cluster", str(tmp_path / "run"))
    monkeypatch.setattr(lock, "_HOLDER", text.replace("flock -w 2", "flock -w 0.2"))


def take(who: Bearer) -> subprocess.Popen[str]:
    return subprocess.Popen(
        shlex.split(holder(who)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def first(process: subprocess.Popen[str]) -> Held | Busy | None:
    assert process.stdout is not None
    return answer(process.stdout.readline())


@pytest.fixture
def alices() -> Iterator[subprocess.Popen[str]]:
    process = take(ALICE)
    assert isinstance(first(process), Held)
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("alices")
def test_the_second_is_told_who_came_first_and_what_is_being_done() -> None:
    second = take(BOB)
    said = first(second)
    assert second.wait(10) == 0
    assert isinstance(said, Busy)
    assert said.bearer == ALICE
    text = said.text("node-a")
    assert text.startswith("alice on laptop-7 runs cluster.py since 20")
    assert "on node-a" in text


@pytest.mark.parametrize("how", ["end of input", "kill"])
def test_the_lock_is_free_as_soon_as_its_holder_is_gone(
    alices: subprocess.Popen[str], how: str
) -> None:
    if how == "kill":
        alices.kill()
        alices.wait()
    else:
        assert alices.stdin is not None
        alices.stdin.close()
    second = take(BOB)
    assert isinstance(first(second), Held)
    second.communicate("")


def test_a_holder_that_hears_nothing_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_HOLDER", lock._HOLDER.replace("read -r -t 60", "read -r -t 0.5"))
    silent = take(ALICE)
    assert isinstance(first(silent), Held)
    assert silent.wait(10) == 0
    second = take(BOB)
    assert isinstance(first(second), Held)
    second.communicate("")


def test_lines_of_a_login_shell_are_no_answer() -> None:
    assert answer("Welcome to node-a\n") is None
    assert answer("") is None
    assert answer("vllm-cluster-lock busy 1700000000 ") == Busy(None, 0, 0)


def test_a_refusal_says_how_to_end_the_other_run_where_a_person_runs_it() -> None:
    said = lock.refusal({"node-a": Busy(ALICE, 1_700_000_000, 40)})
    assert said.startswith("alice on laptop-7 runs cluster.py since ")
    assert "end it with Ctrl-C where it runs: units that it started go on starting" in said
    host = Bearer("", "the host", "node-a", "the way back of a switch")
    said = lock.refusal({"node-a": Busy(host, 1_700_000_000, 40)})
    assert "Ctrl-C" not in said
    assert "Wait until it has ended. The lock of a run that died is free at once" in said


def test_spans() -> None:
    assert [span(s) for s in (0, 59, 60, 3599, 11_100)] == [
        "0 s", "59 s", "1 min", "59 min", "3 h 5 min",
    ]  # fmt: skip


def local(command: str) -> list[str]:
    return ["bash", "-c", command]


def test_a_command_holds_the_lock_for_its_block_and_for_what_it_starts() -> None:
    with control.holding("rebuild", {"node-a": local}) as held:
        assert not held.lost
        # What it starts takes part, by the environment.
        with control.holding("cluster.py", {"node-a": local}):
            pass
        second = take(BOB)
        said = first(second)
        assert isinstance(said, Busy)
        assert said.bearer is not None
        assert said.bearer.what == "rebuild"
        second.communicate("")
    third = take(BOB)
    assert isinstance(first(third), Held)
    third.communicate("")


@pytest.mark.usefixtures("alices")
def test_a_command_is_refused_and_leaves_no_lock_behind(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    here = str(tmp_path / "run")

    def elsewhere(command: str) -> list[str]:
        return ["bash", "-c", command.replace(here, other)]

    roots = {"node-a": elsewhere, "node-b": local}
    told = r"alice on laptop-7 .*on node-b.*was changed"
    with pytest.raises(control.LockedError, match=told), control.holding("down", roots):
        pytest.fail("the block must not run")
    subprocess.run(["flock", "-n", f"{other}/lock", "true"], check=True)


class Losing:
    """A host whose first holder lets go at once; the next is tried when `again` is set."""

    def __init__(self) -> None:
        self.calls, self.again = 0, threading.Event()

    def __call__(self, command: str) -> list[str]:
        self.calls += 1
        if self.calls == 1:
            return local(command.replace("read -r -t 60 word", "false"))
        assert self.again.wait(20)
        return local(command)


def test_a_lost_lock_is_told_and_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BEAT_S", 0.1)
    host = Losing()
    with control.holding("down", {"node-a": host}) as held:
        await_true("the loss is noticed", lambda: held.lost == {"node-a"}, 10)
        with pytest.raises(control.LockedError, match="node-a"):
            held.check()
        host.again.set()
        await_true("it is taken again", lambda: not held.lost, 10)
        held.check()
        second = take(BOB)
        assert isinstance(first(second), Busy)
        second.communicate("")


# Its first holder lets go at once; the lock is tried again when this program is told to.
AT_WORK = """
import subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from vllm_cluster.control import run_lock as control
from vllm_cluster.plan import run_lock as lock

lock._HOLDER, control.BEAT_S = sys.argv[1], 0.1
tries = iter([lock._HOLDER])

def host(command):
    if next(tries, None):
        return ["bash", "-c", command.replace("read -r -t 60 word", "false")]
    sys.stdin.readline()
    return ["bash", "-c", command]

def work(_):
    child = subprocess.Popen(["sleep", "300"])
    print(child.pid, flush=True)
    child.wait()

with control.holding("weights place", {"node-a": host}) as held:
    while not held.lost:
        time.sleep(0.01)
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, range(2)))
print("it went on")
"""


def test_a_run_whose_lock_another_took_ends_with_what_it_started() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", AT_WORK, lock._HOLDER], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdout is not None
    children = [int(run.stdout.readline()) for _ in range(2)]
    second = take(BOB)
    assert isinstance(first(second), Held)
    out, err = run.communicate("now\n", timeout=60)
    assert run.returncode == 1
    assert out == ""
    assert "bob on desk-2 runs restart.py" in err
    assert "This one ends here" in err
    await_true("its children end", lambda: not any(map(alive, children)), 10)
    second.communicate("")


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_lock_that_was_taken_again_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BEAT_S", 0.1)
    host = Losing()
    with control.holding("down", {"node-a": host}) as held:
        await_true("the loss is noticed", lambda: held.lost == {"node-a"}, 10)
        await_true("it is tried again", lambda: host.calls == 2, 10)
        threading.Timer(0.2, host.again.set).start()
    with control.holding("down", {"node-a": local}):
        pass


def test_a_host_that_answers_and_cannot_lock_is_refused() -> None:
    def full(_: str) -> list[str]:
        return ["bash", "-c", "echo 'mkdir: No space left on device' >&2; exit 1"]

    with (
        pytest.raises(control.LockedError, match=r"node-a: mkdir: No space left.*nothing was"),
        control.holding("down", {"node-a": full, "node-b": local}),
    ):
        pytest.fail("the block must not run")


@pytest.mark.parametrize(
    ("text", "who", "words"),
    [
        ('1700 {"run": "1", "operator": "a", "machine": "m", "what": "w", "more": 1}', "a", "a on"),
        ('1700 {"run": "1", "op', None, "another run on node-a is under way"),
        ("", None, "another run on node-a is just beginning"),
    ],
)
def test_a_line_of_another_version_and_one_that_was_cut(
    text: str, who: str | None, words: str
) -> None:
    said = busy(text, 1760)
    assert (said.bearer and said.bearer.operator) == who
    assert said.text("node-a").startswith(words)


def test_who_became_root_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "carol")
    assert bearer("x").operator == "carol"


def test_what_takes_a_cluster_away_leaves_no_lock_behind(tmp_path: Path) -> None:
    with control.holding("down", {"node-a": local}) as held:
        assert (tmp_path / "run/lock").exists()
        held.gone.add("node-a")
    assert not (tmp_path / "run").exists()
    second = take(BOB)
    assert isinstance(first(second), Held)
    second.communicate("")


def test_a_lock_file_that_is_gone_is_nobodys_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob waits for Alice's, who takes hers away: Carol must not get one beside Bob."""
    monkeypatch.setattr(lock, "_HOLDER", lock._HOLDER.replace("flock -w 0.2", "flock -w 10"))
    with control.holding("down", {"node-a": local}) as held:
        held.gone.add("node-a")
        bob = take(BOB)
        waits = f"/proc/{bob.pid}/fd/9"
        await_true("Bob has opened it", lambda: Path(waits).exists(), 10)
        old = Path(waits).stat().st_ino
        await_true("Bob waits", lambda: _children(bob.pid) != [], 10)
    assert isinstance(first(bob), Held)
    assert Path(waits).stat().st_ino == (tmp_path / "run/lock").stat().st_ino
    monkeypatch.setattr(lock, "_HOLDER", lock._HOLDER.replace("flock -w 10", "flock -w 0.2"))
    carol = take(ALICE)
    assert isinstance(first(carol), Busy), f"Alice's was {old}"
    for process in (carol, bob):
        process.communicate("")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
