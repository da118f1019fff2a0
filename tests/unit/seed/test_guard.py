"""The guard of an installation, run by a shell over trees that look like machines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.seed.cases import DISK, UUID, seed


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """nvme0n1 with a partition, and sdb with the data's partition."""
    for name in ("dev/disk/by-id", "dev/disk/by-uuid", "etc"):
        (tmp_path / name).mkdir(parents=True)
    for disk, part in (("nvme0n1", "nvme0n1p1"), ("sdb", "sdb1")):
        (tmp_path / "sys/class/block" / disk / part).mkdir(parents=True)
        (tmp_path / "sys/class/block" / part).mkdir(parents=True)
        (tmp_path / "sys/class/block" / part / "partition").write_text("1\n")
        for name in (disk, part):
            (tmp_path / "dev" / name).write_text("")
    point(tmp_path, DISK, "nvme0n1")
    point(tmp_path, f"/dev/disk/by-uuid/{UUID}", "sdb1")
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    (tmp_path / "autoinstall.yaml").write_text(f"match: {{path: {DISK}}}\n")
    (tmp_path / "bin").mkdir()
    udevadm = tmp_path / "bin/udevadm"  # `info --query=property --path=…` shows what is put there
    udevadm.write_text('#!/bin/sh\ncat "${3#--path=}/properties"\n')
    udevadm.chmod(0o755)
    return tmp_path


def point(machine: Path, link: str, name: str) -> None:
    file = machine / link.lstrip("/")
    file.unlink(missing_ok=True)
    file.symlink_to(machine / "dev" / name)


def stacked(machine: Path, name: str, *below: str) -> None:
    """A device that the kernel made of others, as sysfs has it from both sides."""
    (machine / "dev" / name).write_text("")
    for device in below:
        (machine / "sys/class/block" / name / "slaves" / device).mkdir(parents=True)
        (machine / "sys/class/block" / device / "holders" / name).mkdir(parents=True)


def holds(machine: Path, name: str, usage: str) -> None:
    """What udev says of a device's content."""
    folder = machine / "sys/class/block" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "properties").write_text(f"DEVNAME=/dev/{name}\nID_FS_USAGE={usage}\n")


def guarded(machine: Path) -> tuple[int, str, str]:
    """Exit code and words of the guard, and what the installer would read afterwards."""
    text = seed("autoinstall", "ubuntu-24.04")[0].files["user-data"]
    script = yaml.safe_load(text)["autoinstall"]["early-commands"][0]
    # Files stand for devices, and another root for /.
    script = script.replace("[ -b ", "[ -e ").replace("/dev/console", "/dev/null")
    for name in ("/sys/class", "/etc/os-release", "/autoinstall.yaml"):
        script = script.replace(name, f"{machine}{name}")
    script = script.replace("/dev/disk", f"{machine}/dev/disk").replace("udevadm settle", ":")
    wanted = machine / "autoinstall.yaml"
    wanted.write_text(f"match: {{path: {machine}{DISK}}}\n")
    path = f"{machine}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, env={"PATH": path}
    )
    return done.returncode, done.stderr, wanted.read_text()


def test_the_declared_disk_is_what_the_installer_gets(machine: Path) -> None:
    code, words, found = guarded(machine)
    assert (code, words) == (0, "")
    assert found == f"match: {{path: {machine}/dev/nvme0n1}}\n"


def test_a_missing_disk_is_no_reason_to_take_another(machine: Path) -> None:
    (machine / DISK.lstrip("/")).unlink()
    code, words, found = guarded(machine)
    assert code == 1
    assert "this machine has no disk" in words
    assert DISK in found, "nothing that a disk of this machine would fit"


def test_a_partition_is_no_disk(machine: Path) -> None:
    point(machine, DISK, "nvme0n1p1")
    code, words, _ = guarded(machine)
    assert code == 1
    assert "is a partition" in words


@pytest.mark.parametrize("holder", ["nvme0n1", "nvme0n1p1"])
def test_a_disk_that_holds_declared_data_is_refused(machine: Path, holder: str) -> None:
    point(machine, f"/dev/disk/by-uuid/{UUID}", holder)
    code, words, _ = guarded(machine)
    assert code == 1
    assert "holds the data of" in words


def test_data_on_a_mapped_device_is_found_beneath_it(machine: Path) -> None:
    point(machine, f"/dev/disk/by-uuid/{UUID}", "dm-0")
    (machine / "dev/dm-0").write_text("")
    (machine / "sys/class/block/dm-0/slaves/nvme0n1p1").mkdir(parents=True)
    code, words, _ = guarded(machine)
    assert code == 1
    assert "holds the data of" in words


def test_data_under_lvm_on_a_raid_is_found_on_its_member(machine: Path) -> None:
    point(machine, f"/dev/disk/by-uuid/{UUID}", "dm-0")
    stacked(machine, "md127", "sdb1", "nvme0n1p1")
    stacked(machine, "dm-0", "md127")
    code, words, _ = guarded(machine)
    assert code == 1
    assert "holds the data of" in words


def test_data_on_a_partition_of_a_raid_is_found_on_its_member(machine: Path) -> None:
    point(machine, f"/dev/disk/by-uuid/{UUID}", "dm-0")
    stacked(machine, "md127", "sdb1", "nvme0n1p1")
    (machine / "sys/class/block/md127/md127p1").mkdir()
    stacked(machine, "dm-0", "md127p1")
    code, words, _ = guarded(machine)
    assert code == 1
    assert "holds the data of" in words


def test_data_stacked_on_another_disk_is_no_reason_to_refuse(machine: Path) -> None:
    point(machine, f"/dev/disk/by-uuid/{UUID}", "dm-0")
    stacked(machine, "md127", "sdb1")
    stacked(machine, "dm-0", "md127")
    assert guarded(machine)[:2] == (0, "")


@pytest.mark.parametrize("usage", ["crypto", "raid"])
def test_absent_data_may_lie_in_what_is_not_open_on_the_disk(machine: Path, usage: str) -> None:
    (machine / f"dev/disk/by-uuid/{UUID}").unlink()
    holds(machine, "nvme0n1p1", usage)
    code, words, found = guarded(machine)
    assert code == 1
    assert f"{UUID} is not there and may lie in nvme0n1p1" in words
    assert "wipefs --all /dev/nvme0n1p1" in words
    assert DISK in found


def test_absent_data_may_lie_in_what_an_open_one_holds(machine: Path) -> None:
    (machine / f"dev/disk/by-uuid/{UUID}").unlink()
    holds(machine, "nvme0n1p1", "raid")
    stacked(machine, "dm-0", "nvme0n1p1")
    holds(machine, "dm-0", "crypto")
    code, words, _ = guarded(machine)
    assert code == 1
    assert "may lie in dm-0" in words


@pytest.mark.parametrize("usage", ["filesystem", "raid"])
def test_absent_data_is_not_in_what_is_plain_or_open(machine: Path, usage: str) -> None:
    (machine / f"dev/disk/by-uuid/{UUID}").unlink()
    holds(machine, "nvme0n1p1", usage)
    stacked(machine, "dm-0", "nvme0n1p1")
    holds(machine, "dm-0", "filesystem")
    assert guarded(machine)[:2] == (0, "")


def test_a_blank_disk_is_taken_though_no_disk_has_any_uuid(machine: Path) -> None:
    (machine / f"dev/disk/by-uuid/{UUID}").unlink()
    (machine / "dev/disk/by-uuid").rmdir()
    assert guarded(machine)[:2] == (0, "")


def test_what_is_closed_matters_not_where_the_data_is_elsewhere(machine: Path) -> None:
    holds(machine, "nvme0n1p1", "crypto")
    assert guarded(machine)[:2] == (0, "")


def test_the_installer_of_another_release_is_refused(machine: Path) -> None:
    (machine / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
    code, words, _ = guarded(machine)
    assert code == 1
    assert "ubuntu 22.04, not ubuntu-24.04" in words
