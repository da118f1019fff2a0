"""The command that makes a file system, beside tools that only say what they were told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vllm_cluster.operations.storage import _make
from vllm_cluster.plan.storage import LocalDisk


@pytest.mark.parametrize(("readable", "made"), [(True, True), (False, False)])
def test_a_device_that_cannot_be_read_is_not_taken_for_a_blank_one(
    tmp_path: Path, *, readable: bool, made: bool
) -> None:
    device = tmp_path / "device"
    if readable:
        device.write_bytes(bytes(1 << 20))
    for name, line in {
        "blkid": "exit 2",
        "mkfs.ext4": f"touch {tmp_path}/made",
        "sync": ":",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    disk = LocalDisk("/srv", str(device), "ext4", "0-0-0-0")
    done = subprocess.run(
        ["sh", "-c", str(_make(disk))], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (tmp_path / "made").exists() is made, done.stderr
    assert ("cannot be read" in done.stderr) is not made
