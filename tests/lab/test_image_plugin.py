"""The platform plugin, asked by two real ranks: memory is shared on one host only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from images import chroot
from images.cpu import recipe

PROBE = Path(__file__).parent / "image_probe"


@pytest.mark.parametrize(("second", "shared"), [("first", "True"), ("second", "False")])
def test_ranks_share_memory_only_under_one_host_name(second: str, shared: str) -> None:
    command = chroot.command(
        (recipe.IMAGE_CACHE / "current/rootfs").resolve(),
        ["python", "/mnt/same_host.py", second],
        env={"PATH": recipe.PATH, "HOME": "/root"},
        binds={PROBE: "/mnt"},
        own_network=True,
    )
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == [f"0 {shared}", f"1 {shared}"]
