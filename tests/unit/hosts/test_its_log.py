"""A start that fails shows what its unit said in it, whatever the journal has of earlier ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vllm_cluster.operations import its_log
from vllm_cluster.operations.its_log import or_its_log

# A journal of lines `LIFE WORDS`, whose cursors are line numbers, for the options that are used.
_JOURNALCTL = r"""#!/bin/sh
after=0 lines= cursor= lives=
for word; do case $word in
  --after-cursor=*) after=${word#*=} ;;
  --lines=*) lines=${word#*=} ;;
  --show-cursor) cursor=1 ;;
  *INVOCATION_ID=*) lives=${word#*=} ;;
esac; done
found=$(awk -v a="$after" -v l="$lives" 'NR > a && (l == "" || $1 == l) {print NR, $0}' journal)
[ -n "$cursor" ] || printf '%s\n' "$found" | cut -d" " -f3-
[ -z "$cursor" ] || echo "-- cursor: $(printf '%s\n' "$found" | tail -n 1 | cut -d" " -f1)"
"""
_SYSTEMCTL = """#!/bin/sh
case $* in
  *InvocationID*) cat life ;;
  *ActiveState*) cat state ;;
  *) cat coming >>journal; echo next >life; [ ! -e fails ] ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for name, text in (("journalctl", _JOURNALCTL), ("systemctl", _SYSTEMCTL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "journal").write_text("old ValueError: of another life\nold Stopped\n")
    (tmp_path / "coming").write_text("new Starting\nnew OSError: it\\n is full\nnext Starting\n")
    (tmp_path / "fails").touch()
    return tmp_path


def start(host: Path, verb: str, state: str, life: str) -> tuple[int, list[str]]:
    """The exit status, and what was said as errors, of a start with a unit as it was."""
    (host / "state").write_text(f"{state}\n")
    (host / "life").write_text(f"{life}\n")
    done = subprocess.run(
        ["sh", "-c", or_its_log(verb, "vllm.service")], capture_output=True, text=True,
        check=False, cwd=host, env={"PATH": f"{host}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


HEAD = "this start in the log of vllm.service:"


@pytest.mark.parametrize(("state", "life"), [("inactive", ""), ("failed", "old")])
def test_a_start_that_fails_shows_no_other_life(host: Path, state: str, life: str) -> None:
    rc, said = start(host, "start", state, life)
    assert (rc, said) == (1, [HEAD, "Starting", "OSError: it\\n is full", "Starting"])


def test_a_restart_that_fails_does_not_show_how_the_one_before_ended(host: Path) -> None:
    coming = host / "coming"
    coming.write_text(f"old EngineDeadError: it is told to end\n{coming.read_text()}")
    assert start(host, "restart", "active", "old")[1][1:3] == ["Starting", "OSError: it\\n is full"]


def test_a_start_that_was_joined_is_shown_from_its_beginning(host: Path) -> None:
    with (host / "journal").open("a") as journal:
        journal.write("new RuntimeError: why\n")
    said = start(host, "start", "activating", "new")[1]
    assert said == [HEAD, "RuntimeError: why", "Starting", "OSError: it\\n is full"]


def test_of_a_long_log_the_first_errors_stand_before_its_end(host: Path) -> None:
    many = [f"new line {n}" for n in range(100)]
    many.insert(20, "new OSError: the cause")
    (host / "coming").write_text("\n".join(many) + "\n")
    said = start(host, "start", "inactive", "")[1]
    assert (said[1:3], said[-1]) == (["OSError: the cause", "line 60"], "line 99")


def test_a_start_that_goes_well_or_said_nothing_shows_nothing(host: Path) -> None:
    (host / "coming").write_text("")
    assert start(host, "start", "inactive", "") == (1, [])
    (host / "fails").unlink()
    assert start(host, "start", "inactive", "") == (0, [])


def test_why_is_the_deepest_sign_of_what_was_shown() -> None:
    log = ["OSError: No space left on device", "RuntimeError: Engine core initialization failed"]
    words = "OSError: No space left on device"
    assert its_log.why(["Job canceled.", HEAD, *log]) == f"vllm.service: {words}"
    assert its_log.why([HEAD, "Starting"]) == ""
    assert its_log.why(log) == "", "not the log of a unit"
