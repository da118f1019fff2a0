"""What the storage fact's script prints, read back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyinfra.api.exceptions import FactProcessError

from vllm_cluster.facts.space import Space
from vllm_cluster.facts.storage import MountUnit, Storage
from vllm_cluster.plan.blank import Device, Mounted
from vllm_cluster.plan.space import Need


def test_lines_become_devices_mounts_and_units() -> None:
    lines = [
        "device\t/dev/disk/by-id/x\t/dev/vdb\t254:16\text4\tab-cd\tmounted at /srv,held by dm-0",
        "device\t/dev/disk/by-id/y\t\t\t\t\t",
        "mount\t/srv\t/dev/vdb\t254:16\text4\trw,noatime\tno\t",
        "mount\t/mnt\t\t\t\t\tno\t/mnt/left over",
        "unit\tsrv.mount\tenabled\tno\tactive\tloaded",
        "unit\tmnt.mount\tdisabled\tyes\tinactive\tnot-found",
    ]
    found = Storage().process(lines)
    assert found.devices["/dev/disk/by-id/x"] == Device(
        "/dev/vdb", "254:16", "ext4", "ab-cd", ("mounted at /srv", "held by dm-0")
    )
    assert found.devices["/dev/disk/by-id/y"] == Device("", "", "", "", ())
    assert found.mounts["/srv"] == Mounted("/dev/vdb", "254:16", "ext4", "rw,noatime", "", False)
    assert found.mounts["/mnt"].files == "/mnt/left over"
    assert found.units["srv.mount"] == MountUnit(enabled=True, stale=False, active="active")
    assert found.units["mnt.mount"] == MountUnit(enabled=False, stale=True, active="inactive")


@pytest.mark.parametrize("line", ["device\tx", "mount\t/srv\t/dev/x", "unit"])
def test_anything_else_fails_the_fact_of_this_host(line: str) -> None:
    with pytest.raises(FactProcessError):
        Storage().process([line])


def run(command: object) -> list[str]:
    argv = ["sh", "-c", str(command)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_free_space_is_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / ".part").write_bytes(b"x" * 5000)
    needs = (
        Need("a", f"{tmp_path}/not/yet/there", 1, present=str(tmp_path / "there")),
        Need("b", str(tmp_path), 1, present=str(tmp_path / "no"), staging=f"{tmp_path}/.??*"),
    )
    found = Space().process(run(Space().command(needs)))
    state = os.statvfs(tmp_path)
    assert abs(found["a"].free_bytes - state.f_bavail * state.f_frsize) < 2**30
    assert found["a"].total_bytes == state.f_blocks * state.f_frsize
    assert found["a"].present
    assert not found["b"].present
    assert found["b"].staged_bytes == 5000
    assert found["a"].mounted_at == found["b"].mounted_at
