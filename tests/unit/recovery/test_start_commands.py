"""What a unit runs before its container fails with a status that the unit does not forgive."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[3] / "templates"
SCRIPTS = TEMPLATES / "usr/local/lib/vllm-cluster"
UNITS = TEMPLATES / "etc/systemd/system"
SMI = "echo 'GPU 0: NVIDIA H100'"


def run(folder: Path, words: list[str], **commands: str | Path) -> subprocess.CompletedProcess[str]:
    """A script with these commands before all others on its path; a path is a variable of it."""
    paths = {name: str(path) for name, path in commands.items() if isinstance(path, Path)}
    for name in commands.keys() - paths.keys():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{commands[name]}\n")
        file.chmod(0o755)
    environment = {**os.environ, **paths, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", SCRIPTS / words[0], *words[1:]], env=environment, capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip


def forgiven() -> set[int]:
    """Statuses that a unit of ours takes for a success; systemd asks it of ExecStartPre= too."""
    found: set[int] = set()
    for unit in UNITS.glob("*.service.j2"):
        for line in re.findall(r"^SuccessExitStatus=(.*)$", unit.read_text(), re.MULTILINE):
            found |= {int(word) for word in line.split() if word.isdigit()}
    assert found
    return found


@pytest.mark.parametrize("status", [1, 4])
def test_another_model_than_the_plans_is_a_failure_to_every_unit(
    tmp_path: Path, status: int
) -> None:
    asked = tmp_path / "asked"
    check = ["sh", "-c", f"echo 'no such copy' >&2; exit {status}"]
    done = run(
        tmp_path, ["weights-ready", "x.service", *check],
        systemctl=f'echo "$@" > {asked}',
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}
    assert "is not the plan's: no such copy" in done.stderr
    assert asked.read_text() == "--no-block stop x.service\n"
    assert run(tmp_path, ["weights-ready", "x.service", "true"]).returncode == 0


@pytest.mark.parametrize("end", ["exit 5", "exit 2", "kill -9 $$"])
def test_a_model_that_nobody_could_look_at_is_a_failure_and_no_stop(
    tmp_path: Path, end: str
) -> None:
    asked = tmp_path / "asked"
    check = ["sh", "-c", f"echo 'Stale file handle' >&2; {end}"]
    done = run(
        tmp_path, ["weights-ready", "x.service", *check],
        systemctl=f'echo "$@" > {asked}',
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}
    assert "could not be looked at" in done.stderr
    assert "Stale file handle" in done.stderr
    assert "is not the plan's" not in done.stderr
    assert not asked.exists()


@pytest.mark.parametrize("smi", ["echo 'No devices were found'; exit 6", SMI])
def test_gpus_that_containers_cannot_have_are_a_failure_to_every_unit(
    tmp_path: Path, smi: str
) -> None:
    done = run(
        tmp_path, ["gpus-ready", "1", "0"], nvidia_smi=smi, nvidia_modprobe="exit 0",
        nvidia_ctk="echo 'no driver' >&2; exit 1",
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}


def test_an_nvidia_smi_that_hangs_is_told_and_keeps_to_the_limit(tmp_path: Path) -> None:
    uptime = tmp_path / "uptime"
    uptime.write_text("100.00 0.00\n")
    done = run(
        tmp_path, ["gpus-ready", "1", "240"], UPTIME_FILE=uptime,
        timeout=f"echo '400.00 0.00' >{uptime}; exit 124",
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}
    assert "waiting for 1 GPUs: nvidia-smi does not answer" in done.stdout
    assert "no 1 GPUs within 240 s: nvidia-smi does not answer" in done.stderr


# As over a GPU that is wedged, and a file server that is away: what was killed does not end.
SLOW = """read() {
  if [ $# -gt 3 ] && [ ! -e "$SEEN" ]; then : >"$SEEN"; part=; return 142; fi
  builtin read "$@"
}
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gpus-ready", "1"], "waiting for nvidia-smi; when this comes again"),
        (["weights-ready", "x.service", "sh", "-c", "echo 'no such copy' >&2; exit 1"],
         "waiting for the model on this host"),
    ],
)  # fmt: skip
def test_what_is_silent_for_long_is_told_and_still_judged(
    tmp_path: Path, words: list[str], told: str
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(SLOW)
    done = run(
        tmp_path, words, BASH_ENV=slow, SEEN=tmp_path / "seen", nvidia_smi=SMI, systemctl="exit 0",
        nvidia_modprobe="exit 0", nvidia_ctk="echo 'no driver' >&2; exit 1",
    )  # fmt: skip
    assert told in done.stdout
    assert ("no driver" if words[0] == "gpus-ready" else "plan's: no such copy") in done.stderr


@pytest.mark.parametrize(
    ("removal", "runs", "told"),
    [
        ("echo 'no exit event' >&2; exit 1", "true", "a process in it hangs in the kernel"),
        ("exit 124", "true", "a process in it hangs in the kernel"),
        ("exit 124", "", "did not take the container vllm away"),
        ("exit 1", "", ""),
        ("exit 0", "true", ""),
    ],
)
def test_a_container_that_is_not_taken_away_says_why(
    tmp_path: Path, removal: str, runs: str, told: str
) -> None:
    done = run(
        tmp_path, ["end-container", "vllm"], systemctl="exit 0",
        docker=f"case $1 in rm) {removal} ;; *) echo '{runs}' ;; esac",
    )  # fmt: skip
    assert told in done.stderr
    assert bool(done.stderr.replace("no exit event\n", "")) is bool(told)
    assert (done.returncode == 0) is (removal == "exit 0")


@pytest.mark.parametrize("words", [["vllm"], ["vllm", "30"]])
def test_a_container_that_is_not_there_is_no_error(tmp_path: Path, words: list[str]) -> None:
    """It would be found as the last error in the log of a start that failed."""
    done = run(
        tmp_path, ["end-container", *words], systemctl="exit 0",
        docker="echo 'Error: No such container: vllm' >&2; exit 1",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_docker_says_of_a_stop_is_told(tmp_path: Path) -> None:
    docker = "echo 'Error response from daemon: cannot stop' >&2; exit 1"
    done = run(tmp_path, ["end-container", "vllm", "30"], systemctl="exit 0", docker=docker)
    assert (done.returncode, done.stderr) == (1, "Error response from daemon: cannot stop\n")


def sessions(ray: Path, *names: str) -> Path:
    """Ray's directory with sessions of these names, the first the oldest."""
    for at, name in enumerate(names):
        logs = ray / "sessions" / name / "logs"
        logs.mkdir(parents=True)
        (logs / "gcs_server.out").write_text("words")
        os.utime(ray / "sessions" / name, (1000 + at, 1000 + at))
    (ray / "rpc").mkdir()
    return ray


def test_only_the_last_sessions_of_ray_are_kept(tmp_path: Path) -> None:
    names = [f"session_2026-01-0{day}_00-00-00_1_1" for day in range(1, 8)]
    ray = sessions(tmp_path / "ray", *names)
    (ray / "sessions" / "session_latest").symlink_to(names[-1])
    (ray / "sessions" / "of somebody else").mkdir()
    (ray / "rpc" / "a socket").touch()
    for _ in range(2):
        done = run(tmp_path, ["clear-ray", str(ray), "5"])
        assert (done.returncode, done.stderr) == (0, "")
        left = {path.name for path in (ray / "sessions").iterdir()}
        assert left == {*names[2:], "session_latest", "of somebody else"}
    assert list((ray / "rpc").iterdir()) == []


def test_a_host_on_which_ray_never_ran_has_nothing_to_clear(tmp_path: Path) -> None:
    done = run(tmp_path, ["clear-ray", str(tmp_path), "5"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("echo 1", "Ray shows: 1"),
        ("echo '<urlopen error [Errno 111] Connection refused>'; exit 1",
         "Ray does not answer: Connection refused"),
        ("echo 'Error: No such container: ray-head' >&2; exit 1",
         "Ray does not answer: Error: No such container: ray-head"),
    ],
)  # fmt: skip
def test_what_ray_says_while_gpus_are_waited_for_is_told_in_words(
    tmp_path: Path, said: str, words: str
) -> None:
    (tmp_path / "answer").write_text(said)
    later = f"[ -e {tmp_path}/asked ] && {{ echo 2; exit; }}; touch {tmp_path}/asked; "
    done = run(
        tmp_path, ["wait-for-gpus", "2"],
        docker=f"{later}. {tmp_path}/answer", timeout='shift; exec "$@"', sleep="true",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"waiting for 2 GPUs; {words}\n")
