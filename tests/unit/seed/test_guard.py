"""The guard of an installation, run by a shell over trees that look like machines."""

from __future__ import annotations

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
    return tmp_path


def point(machine: Path, link: str, name: str) -> None:
    file = machine / link.lstrip("/")
    file.unlink(missing_ok=True)
    file.symlink_to(machine / "dev" / name)


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
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
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


def test_the_installer_of_another_release_is_refused(machine: Path) -> None:
    (machine / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
    code, words, _ = guarded(machine)
    assert code == 1
    assert "ubuntu 22.04, not ubuntu-24.04" in words
