"""Units whose files changed after their start: the shell of the fact, beside a systemctl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from vllm_cluster.facts.units import UnitStates

_SHOWN = "Id=x.service\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\n"
_REST = "UnitFileState=enabled\\nNeedDaemonReload=no\\nResult=success\\n"


def newer(folder: Path, started_s: float, *files: Path) -> tuple[str, ...]:
    """What the fact says of `files` of a unit that started so long after the boot."""
    program = folder / "systemctl"
    program.write_text(f"""#!/bin/sh
case $* in
  *EnterTimestampMonotonic*) echo {round(started_s * 1e6)} ;;
  *EnterTimestamp*) echo "Thu 2000-01-06 10:00:00.000001 UTC" ;;
  *) printf '{_SHOWN}{_REST}' ;;
esac
""")
    program.chmod(0o755)
    names = {"x.service": [str(file) for file in files]}
    command = UnitStates().command(["x.service"], files=names).get_raw_value()
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=True,
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stderr == ""
    return UnitStates().process(done.stdout.splitlines())["x.service"].newer_files


def uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def test_a_file_is_newer_when_it_changed_after_the_start(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("x\n")
    assert newer(tmp_path, 1, file) == (str(file),)
    assert newer(tmp_path, 0, file) == (str(file),), "it never started"


def test_a_start_after_the_change_is_one_by_a_clock_that_was_slow_too(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("x\n")
    assert newer(tmp_path, uptime_s() + 1, file) == ()


def test_a_file_that_is_missing_is_not_newer(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert newer(tmp_path, 1, missing) == ()
