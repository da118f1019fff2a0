"""The watchdog on the host: what it ends for what the watcher inside says, or does not say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "templates/usr/local/lib/vllm-cluster/watch"
DOCKER = """#!/bin/bash
echo "$*" >>asked
case "$*" in
  exec*) {watcher} ;;
  *Running*) {runs} ;;
  kill*) : >killed; exit {kill} ;;
esac
"""
# bash ends `read -t` after the first byte when the clock has stepped over its end (5.2).
STEPPED = """read() {
  if [ $# -gt 3 ] && [ ! -e stepped ]; then
    : >stepped
    builtin read -r -N 1 part
    return 142
  fi
  builtin read "$@"
}
"""


class Host:
    """A host whose uptime goes by `sleep`, four times as fast, and otherwise as `docker` says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "units"
        self.program("attempt", 'echo "$@" >>attempts')
        self.program("systemctl", "test ! -e stopped")
        self.program("sleep", "uptime_is $(($(cut -d. -f1 uptime) + 4 * $1))")
        self.program("uptime_is", 'echo "$1.00 0.00" >uptime')
        self.program(
            "seen", 'until grep -qs "$1" units/vllm.watched; do command -p sleep 0.02; done'
        )
        self.program("hang", "until [ -e killed ]; do command -p sleep 0.02; done")
        (folder / "uptime").write_text("100.00 0.00\n")
        self.state.mkdir()
        (self.state / "vllm.invocation").write_text("0123\n")
        (folder / "watch").write_bytes(SCRIPT.read_bytes())
        for name in ("asked", "attempts"):
            (folder / name).write_text("")

    def program(self, name: str, body: str) -> None:
        """A program before all others on the path."""
        (self.folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.folder / name).chmod(0o755)

    def watch(self, watcher: str, *, runs: str = "echo true", kill: int = 0, bash: str = "") -> int:
        """The script's status, with a watcher inside that does `watcher`."""
        self.program("docker", DOCKER.format(watcher=watcher, runs=runs, kill=kill))
        (self.folder / "env").write_text(bash)
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "BASH_ENV": "env",
            "UNITS_STATE": "units", "UPTIME_FILE": "uptime",
        }  # fmt: skip
        return subprocess.run(
            ["bash", "./watch", "vllm"], cwd=self.folder, env=environment, check=False, timeout=60,
            capture_output=True,
        ).returncode  # fmt: skip

    def text(self, name: str) -> str:
        """What lies in a file of this host."""
        return (self.folder / name).read_text()

    @property
    def ended(self) -> bool:
        """Whether the container was ended."""
        return "kill vllm" in self.text("asked")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_hangs_inside_is_ended_with_its_reason(host: Host) -> None:
    assert host.watch("echo 'well'; echo 'dead no token for 190 s'; exit 3") == 0
    assert host.ended
    assert host.text("units/vllm.watchdog") == "0123 watchdog: no token for 190 s\n"


def test_what_ends_with_its_head_is_ended_and_not_blamed(host: Host) -> None:
    assert host.watch("echo 'well'; echo 'gone the GCS has ended'; exit 3") == 0
    assert host.ended
    assert not (host.state / "vllm.watchdog").exists()
    said = "say vllm watchdog: the GCS has ended; the container is ended"
    assert host.text("attempts").splitlines() == [said, "excused vllm"]


def test_a_container_in_which_nothing_runs_is_ended(host: Host) -> None:
    assert host.watch("echo 'well a'; seen a; uptime_is 160; hang") == 0
    assert "nothing runs in the container: no word for 60 s" in host.text("units/vllm.watchdog")


def test_a_clock_that_steps_within_a_word_ends_nothing(host: Host) -> None:
    assert host.watch("echo 'well as ever'", runs="echo false", bash=STEPPED) == 1
    assert (host.folder / "stepped").exists()
    assert not host.ended
    assert host.text("units/vllm.watched") == "100 well as ever\n"


def test_a_unit_has_held_by_the_uptime(host: Host) -> None:
    words = "echo 'well a'; seen a; uptime_is 699; echo 'well b'; seen b; cp attempts before"
    words += "; uptime_is 700; echo 'well c'; echo 'well d'"
    assert host.watch(words, runs="echo false", bash="SECONDS=5000") == 1
    assert host.text("before") == ""
    assert host.text("attempts") == "held vllm\n"


REFUSED = "echo 'cannot allocate memory'; exit 126"


def test_a_container_that_takes_no_watcher_any_more_is_ended_after_a_minute(host: Host) -> None:
    assert host.watch(f"if [ ! -e units/vllm.watched ]; then echo well; exit; fi; {REFUSED}") == 0
    reason = "nothing can be run in the container: cannot allocate memory"
    assert host.text("units/vllm.watchdog") == f"0123 watchdog: {reason}\n"
    assert host.text("units/vllm.watched") == "100 well\n", "what Docker says is no sign of life"
    assert host.text("uptime") == "160.00 0.00\n"


def test_a_container_that_never_took_a_watcher_is_ended_like_one_that_starts(host: Host) -> None:
    assert host.watch(REFUSED, kill=1) == 1
    assert host.text("uptime") == "400.00 0.00\n"
    assert "a process in it hangs in the kernel; reboot the host" in host.text("attempts")


def test_a_watcher_that_comes_in_again_keeps_its_container(host: Host) -> None:
    count = "$(grep -c ^exec asked)"
    runs = f"if [ {count} -lt 8 ]; then echo true; fi"
    watcher = f"if [ $(({count} % 2)) = 1 ]; then echo well; exit; fi; {REFUSED}"
    assert host.watch(watcher, runs=runs) == 1
    assert host.text("uptime") == "240.00 0.00\n"
    assert not host.ended


def test_a_container_that_ended_is_left_to_its_unit(host: Host) -> None:
    assert host.watch(REFUSED, runs="exit 1") == 1
    assert host.text("asked").count("exec ") == 1
    assert not host.ended


def test_docker_that_somebody_stopped_is_not_asked(tmp_path: Path) -> None:
    """Its socket would start it again."""
    host = Host(tmp_path)
    assert host.watch("echo well it works; touch stopped; >asked; exit 1") == 1
    assert host.text("asked") == ""
    assert not host.ended
