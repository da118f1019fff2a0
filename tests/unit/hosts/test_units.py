"""Units whose files changed after their start: the shell of the fact, beside a systemctl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vllm_cluster.facts.units import UnitStates

_SHOWN = "Id=x.service\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\n"
_REST = "UnitFileState=enabled\\nNeedDaemonReload=no\\nResult=success\\n"


def newer(folder: Path, started: str, *files: Path) -> tuple[str, ...]:
    """What the fact says of `files` of a unit that started then."""
    program = folder / "systemctl"
    told = f"printf '{_SHOWN}{_REST}'"
    program.write_text(f'#!/bin/sh\ncase $* in *Enter*) echo "{started}" ;; *) {told} ;; esac\n')
    program.chmod(0o755)
    names = {"x.service": [str(file) for file in files]}
    command = UnitStates().command(["x.service"], files=names).get_raw_value()
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=True,
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stderr == ""
    return UnitStates().process(done.stdout.splitlines())["x.service"].newer_files


@pytest.mark.parametrize(
    ("started", "is_newer"),
    [("Thu 2000-01-06 10:00:00.000001 UTC", True), ("Sat 2099-01-03 10:00:00.5 UTC", False),
     ("", True)],
)  # fmt: skip
def test_a_file_is_newer_when_it_changed_after_the_start(
    tmp_path: Path, started: str, is_newer: bool
) -> None:
    file = tmp_path / "config"
    file.write_text("x\n")
    assert newer(tmp_path, started, file) == ((str(file),) if is_newer else ())


def test_a_file_that_is_missing_is_not_newer(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert newer(tmp_path, "Thu 2000-01-06 10:00:00.000001 UTC", missing) == ()
