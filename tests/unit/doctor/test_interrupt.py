"""Ctrl-C while hosts do not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.doctor.here import description, ssh
from vllm_cluster.doctor import reach

# A shell that starts tests in the background has SIGINT ignored; and a proxy command lives on
# in ssh's group, with its outputs.
_MAIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from vllm_cluster.cli import main; main()"
)
_HANGS = 'sleep 900 & echo $$ $! > "$SSH_PIDS/$$.new"; mv "$SSH_PIDS/$$.new" "$SSH_PIDS/$$"; wait'
_HOSTS = 2


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("words", [("doctor",), ("doctor", "--watch", "5"), ("status",)])
def test_an_interrupt_ends_every_ssh_and_the_command(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    path = ssh(tmp_path, _HANGS)
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "SSH_PIDS": str(pids),
           "XDG_CACHE_HOME": str(tmp_path / "cache")}  # fmt: skip
    command = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *words, str(description(tmp_path))],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while len([p for p in pids.iterdir() if p.suffix != ".new"]) < _HOSTS:
        assert command.poll() is None, command.communicate()
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate()
    assert (command.returncode, out, err.strip()) == (130, "", "")
    started = [int(pid) for file in pids.iterdir() for pid in file.read_text().split()]
    # Killed as a group: the kernel takes a moment for each on a busy machine.
    until_s = time.monotonic() + 30
    while alive := [pid for pid in started if _alive(pid)]:
        assert time.monotonic() < until_s, f"{alive} outlived the command"
        time.sleep(0.02)


def test_what_starts_while_all_is_ended_is_ended_too() -> None:
    def interrupted() -> None:
        with reach.pool(1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reach.run(["sleep", "900"], "", 900).code == reach.SSH_FAILED
    with reach.pool(1) as threads:
        assert threads.submit(reach.run, ["echo", "again"], "", 900).result().out == "again\n"
