"""Disks that fill up, fail and lose their power. Needs root, loop devices and ext4."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.weights.fleet import MODEL, REVISION, Fleet, wait_until
from tests.lab.weights.helpers import (
    CHUNK_BYTES,
    SHARD_BYTES,
    SHARDS,
    everybody_has_it,
    nothing_visible,
    reach,
    written_bytes,
)

pytestmark = pytest.mark.lab

MODEL_MIB = SHARDS * SHARD_BYTES >> 20
# ext4: EXT4_IOC_SHUTDOWN = _IOR('X', 125, __u32); no flush of data or log: a power cut.
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
_CLONE_NEWNS = 0x20000


def run(*argv: object) -> str:
    return subprocess.run(
        [str(word) for word in argv], check=True, capture_output=True, text=True
    ).stdout


class Disk:
    """An ext4 in a file, mounted as a host's weights root."""

    def __init__(self, base: Path, mount: Path, mib: int) -> None:
        self.image, self.mount = base / "disk.img", mount
        base.mkdir(exist_ok=True)
        mount.mkdir(exist_ok=True)
        run("truncate", "-s", f"{mib}M", self.image)
        run("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", "-J", "size=4", self.image)
        self.attach()

    def attach(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", self.image, self.mount)

    def detach(self) -> None:
        run("umount", self.mount)

    def power_cut(self) -> None:
        """What was not synced is gone, and every call fails from now on."""
        handle = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def repair(self) -> None:
        """e2fsck: 0 clean, 1 errors corrected."""
        done = subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, check=False)
        assert done.returncode in {0, 1}, done.stdout


@pytest.fixture
def own_mounts() -> Iterator[None]:
    """A mount namespace for the test: whatever else runs here would take copies of our mounts into
    its own and keep the file systems alive after umount."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = Path.cwd()
    with Path(f"/proc/self/task/{threading.get_native_id()}/ns/mnt").open() as before:
        assert libc.unshare(_CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        run("mount", "--make-rprivate", "/")
        yield
        assert libc.setns(before.fileno(), _CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        os.chdir(here)


@pytest.fixture
def disks(fleet: Fleet, own_mounts: None) -> Iterator[Callable[..., Disk]]:  # noqa: ARG001
    """Make disks for hosts; unmounted at the end, whatever holds them."""
    made: list[Disk] = []

    def make(number: int, mib: int, base: Path | None = None) -> Disk:
        made.append(Disk(base or fleet.base / f"disk{number}", fleet.root(number), mib))
        return made[-1]

    yield make
    fleet.stop_all()
    for disk in made:
        subprocess.run(["umount", disk.mount], capture_output=True, check=False)


def test_a_disk_too_small_is_refused_before_the_first_byte(
    fleet: Fleet, disks: Callable[..., Disk]
) -> None:
    disks(1, MODEL_MIB - 8)
    started = fleet.start_all([1])
    assert started[1].wait(30) == 1
    assert f"node-1: {MODEL}: {fleet.root(1)} has 0.0" in fleet.log(1)
    assert "GiB free, needs 0.03 GiB" in fleet.log(1)
    nothing_visible(fleet, 1)
    assert written_bytes(fleet.root(1) / ".staging" / fleet.key()) == 0
    assert started[0].wait(30) == 0


def test_a_disk_that_is_not_mounted_is_refused_before_the_first_byte(fleet: Fleet) -> None:
    fleet.options["mountpoint"] = str(fleet.root(1))
    jobs = fleet.jobs([1])
    fleet.options["mountpoint"] = None
    started = fleet.start(0, "serve", fleet.jobs([1])[fleet.name(0)])
    fleet.root(1).mkdir()
    assert fleet.start(1, "pull", jobs[fleet.name(1)]).wait(30) == 1
    assert f"node-1: {fleet.root(1)} is not mounted" in fleet.log(1)
    assert started.wait(30) == 0


def test_what_others_write_meanwhile_cannot_take_the_reserved_space(
    fleet: Fleet, source: Path, disks: Callable[..., Disk]
) -> None:
    disks(1, MODEL_MIB + 16)
    started = fleet.start_all([1])
    reach(fleet, 1, 0.3)
    filler = subprocess.run(
        ["dd", "if=/dev/zero", f"of={fleet.root(1)}/filler", "bs=1M"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "No space left on device" in filler.stderr
    assert [process.wait(60) for process in started.values()] == [0, 0], fleet.log(1)
    everybody_has_it(fleet, source, [1])


@pytest.fixture
def thin(tmp_path: Path, own_mounts: None) -> Iterator[Path]:  # noqa: ARG001
    """Where a disk's image can lie that promises more than there is: a small tmpfs."""
    directory = tmp_path / "thin"
    directory.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={int(MODEL_MIB * 0.7)}M", "tmpfs", directory)
    yield directory
    run("umount", directory)


def test_storage_that_ends_at_70_percent_is_noticed_at_the_latest_by_fsync(
    fleet: Fleet, source: Path, thin: Path, disks: Callable[..., Disk]
) -> None:
    """No reservation helps on a thin volume; the write succeeds, the sync does not."""
    disk = disks(1, MODEL_MIB + 16, thin)
    started = fleet.start_all([1])
    assert started[1].wait(60) == 1
    assert "node-1: " in fleet.log(1)
    assert ".safetensors: the " in fleet.log(1), "the file, and what the disk says"
    assert not fleet.placed(1).exists()
    assert started[0].wait(60) == 0
    disk.detach()
    run("mount", "-o", "remount,size=256M", thin)
    disk.repair()
    disk.attach()
    nothing_visible(fleet, 1)
    again = fleet.start_all([1])
    assert [process.wait(60) for process in again.values()] == [0, 0], fleet.log(1)
    everybody_has_it(fleet, source, [1])
    disk.detach()


def test_a_power_cut_in_the_middle_keeps_what_was_synced_and_believes_nothing_else(
    fleet: Fleet, source: Path, disks: Callable[..., Disk]
) -> None:
    disk = disks(2, MODEL_MIB + 16)
    started = fleet.start_all([1, 2, 3])
    reach(fleet, 2, 0.5)
    disk.power_cut()
    started[2].kill()
    started[2].wait()
    disk.detach()
    disk.attach()
    nothing_visible(fleet, 2)
    jobs = fleet.jobs([1, 2, 3])
    assert fleet.start(2, "pull", jobs[fleet.name(2)]).wait(60) == 0, fleet.log(2)
    assert [started[n].wait(60) for n in (0, 1, 3)] == [0, 0, 0], fleet.log(3)
    everybody_has_it(fleet, source, [1, 2, 3])
    # whole files are synced as they complete: at most the ones that were under way are lost
    assert fleet.state(2)["kept_bytes"] > 0.5 * MODEL_MIB * 2**20 - 3 * SHARD_BYTES


def test_a_power_cut_right_after_placement_loses_nothing(
    fleet: Fleet, source: Path, disks: Callable[..., Disk]
) -> None:
    disk = disks(1, MODEL_MIB + 16)
    started = fleet.start_all([1, 2])
    wait_until(lambda: fleet.placed(1).exists(), 60, "host 1 has it")
    disk.power_cut()
    started[1].kill()
    started[1].wait()
    disk.detach()
    disk.attach()
    check = fleet.call(1, "check", "--model", MODEL, "--revision", REVISION)
    assert check.returncode == 0, check.stderr
    everybody_has_it(fleet, source, [1])
    assert started[2].wait(60) == 0, "the one behind it goes on with the first host"
    everybody_has_it(fleet, source, [2])


def test_a_sector_that_cannot_be_read_is_damage_not_a_crash(
    fleet: Fleet, source: Path, disks: Callable[..., Disk]
) -> None:
    """The extent of a placed file is punched out of the image: the file system sees other bytes."""
    disk = disks(1, MODEL_MIB + 16)
    first = fleet.start_all([1])
    assert [process.wait(60) for process in first.values()] == [0, 0]
    shard = next(fleet.placed(1).glob("model-00003*"))
    extents = run("filefrag", "-b1024", "-e", shard)
    start = re.search(r"^ +0: +0\.\. +\d+: +(\d+)\.\.", extents, re.MULTILINE)
    assert start is not None, extents
    disk.detach()
    run("fallocate", "-p", "-o", int(start[1]) * 1024, "-l", 4096, disk.image)
    disk.attach()
    check = fleet.call(1, "check", "--model", MODEL, "--revision", REVISION)
    assert check.returncode == 0, "size and times tell nothing"
    deep = fleet.call(1, "verify")
    assert deep.returncode == 4
    assert f"{shard.name}: 1 damaged piece(s) of {CHUNK_BYTES} bytes at byte 0" in deep.stderr
    jobs = fleet.jobs([1])
    parts = [
        fleet.start(0, "serve", jobs[fleet.name(0)]),
        fleet.start(1, "repair", jobs[fleet.name(1)]),
    ]
    assert [part.wait(60) for part in parts] == [0, 0], fleet.log(1)
    everybody_has_it(fleet, source, [1])
    assert fleet.state(1)["fetched_bytes"] == CHUNK_BYTES
