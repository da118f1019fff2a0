"""A file system is made on a blank declared device, and on no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.plan.blank import (
    Device,
    Mounted,
    disk_problem,
    is_mounted,
    mount_problem,
    needs_format,
)
from vllm_cluster.plan.storage import LocalDisk, Mount

OURS = "11111111-2222-5333-8444-555555555555"
TO_MAKE = LocalDisk("/srv/nvme", "/dev/disk/by-id/nvme-X", "ext4", OURS)
AS_IS = LocalDisk("/srv/nvme", "/dev/disk/by-uuid/aaaa", None, "aaaa")
ANY = LocalDisk("/srv/nvme", "/dev/disk/by-id/nvme-X", None, "")
BLANK = Device("/dev/nvme1n1", "259:1", "", "", ())


def test_a_blank_declared_device_gets_a_file_system() -> None:
    assert disk_problem(TO_MAKE, BLANK) == ""
    assert needs_format(TO_MAKE, BLANK)


def test_our_own_file_system_is_kept_on_every_later_run() -> None:
    made = Device("/dev/nvme1n1", "259:1", "ext4", OURS, ("mounted at /srv/nvme",))
    assert disk_problem(TO_MAKE, made) == ""
    assert not needs_format(TO_MAKE, made)


# What is on the device that was declared to be blank; words that must be told.
DATA = [
    (Device("/dev/sdb", "8:16", "ext4", "77aa", ()), "ext4", "`UUID=77aa`"),
    (Device("/dev/sdb", "8:16", "xfs", OURS[:-1] + "0", ()), "xfs", "nothing was changed"),
    (Device("/dev/sdb", "8:16", "gpt", "", ("sdb1",)), "gpt (sdb1)", "wipefs --all /dev/sdb"),
    (Device("/dev/sdb", "8:16", "LVM2_member", "x-y", ("held by dm-0",)), "LVM2", "held by dm-0"),
    (Device("/dev/sdb", "8:16", "ambivalent", "", ()), "ambivalent", "nothing was changed"),
    (Device("/dev/sdb", "8:16", "unreadable", "", ()), "unreadable", "nothing was changed"),
    (Device("/dev/sdb", "8:16", "swap", "1-2", ("swap",)), "swap", "nothing was changed"),
    (Device("/dev/sdb", "8:16", "", "", ("sdb1",)), "in use (sdb1)", "nothing was changed"),
    (Device("/dev/sdb", "8:16", "", "", ("mounted at /",)), "mounted at /", "nothing was changed"),
    (Device("", "", "", "", ()), "is not on this host", "/dev/disk/by-id"),
]


@pytest.mark.parametrize(("found", "words", "fix"), DATA)
def test_a_device_that_is_not_blank_is_refused(found: Device, words: str, fix: str) -> None:
    problem = disk_problem(TO_MAKE, found)
    assert words in problem
    assert fix in problem


_text = st.text("abcdef0123456789-", max_size=8)


@given(st.builds(Device, _text, _text, _text, _text, st.lists(_text, max_size=2).map(tuple)))
def test_nothing_is_made_on_a_device_with_a_signature_a_user_or_no_name(found: Device) -> None:
    for disk in (TO_MAKE, AS_IS, ANY):
        if disk_problem(disk, found) == "" and needs_format(disk, found):
            assert disk.format
            assert found.real
            assert found.signature == ""
            assert found.users == ()


def test_without_format_nothing_is_ever_made() -> None:
    assert "`format: ext4`" in disk_problem(ANY, BLANK)
    assert not needs_format(ANY, BLANK)


def test_a_declared_uuid_that_no_disk_has_is_an_error_with_the_way_to_find_out() -> None:
    problem = disk_problem(AS_IS, Device("", "", "", "", ()))
    assert "no file system with UUID aaaa" in problem
    assert "lsblk" in problem


LOCAL = Mount("/srv/nvme", f"/dev/disk/by-uuid/{OURS}", "ext4", ("nofail",), False, "disk")
NFS = Mount("/mnt/m", "10.0.0.1:/srv", "nfs4", ("nofail",), True, "NFS")
BIND = Mount("/mnt/m", "/srv", "none", ("bind", "nofail"), False, "bind")
DISK = Device("/dev/nvme1n1", "259:1", "ext4", OURS, ())
BARE = Mounted("", "", "", "", "", False)


def test_the_right_thing_is_told_from_another_by_device_source_and_inode() -> None:
    assert is_mounted(LOCAL, Mounted("/dev/nvme1n1", "259:1", "ext4", "rw", "", False), DISK)
    assert not is_mounted(LOCAL, Mounted("/dev/sda1", "8:1", "ext4", "rw", "", False), DISK)
    assert is_mounted(NFS, Mounted("10.0.0.1:/srv", "0:50", "nfs4", "ro", "", False), None)
    assert not is_mounted(NFS, Mounted("10.0.0.2:/srv", "0:50", "nfs4", "ro", "", False), None)
    assert is_mounted(BIND, Mounted("/dev/sda1[/srv]", "8:1", "ext4", "rw", "", True), None)
    assert not is_mounted(BIND, Mounted("/dev/sda1[/x]", "8:1", "ext4", "rw", "", False), None)
    for mount in (LOCAL, NFS, BIND):
        assert not is_mounted(mount, BARE, DISK)


def test_a_mount_that_would_hide_files_is_refused() -> None:
    hidden = Mounted("", "", "", "", "/srv/nvme/models/a.safetensors", False)
    assert "the mount would hide it" in mount_problem(LOCAL, hidden, DISK)
    assert mount_problem(LOCAL, BARE, DISK) == ""


def test_a_foreign_mount_is_left_alone() -> None:
    problem = mount_problem(LOCAL, Mounted("/dev/sda1", "8:1", "ext4", "rw", "", False), DISK)
    assert "/dev/sda1 (ext4) is mounted at /srv/nvme" in problem
