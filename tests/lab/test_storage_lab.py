"""Disks and mounts on real hosts: what is refused, and what was there before is still there.

The hosts have no udev, so device units of systemd never appear there: that a disk is mounted by
its UUID, and NFS, is proven on machines with kernels of their own (tests/vm).
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import with_standin
from tests.lab.harness import ROOT, Cluster
from vllm_cluster.lab import Host

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
STORAGE = "deploys/storage.py"
MIB = 2**20
BY_ID = "/dev/disk/by-id/virtio-lab"


@pytest.fixture
def cluster(standins: Cluster, tmp_path: Path) -> Iterator[Callable[[str], Cluster]]:
    """A description of the same hosts with a storage section."""

    def made(storage: str) -> Cluster:
        return with_standin(tmp_path, standins.lab, lambda text: f"{text}\n{storage}")

    yield made
    for host in standins.lab.hosts:
        host.ssh(
            "umount /srv/small /srv/nvme 2>/dev/null; rm -rf /srv/small /srv/nvme /dev/disk;"
            "rm -f /etc/systemd/system/srv-*.mount; systemctl daemon-reload"
        )


def named_disk(host: Host, size_bytes: int = 64 * MIB) -> str:
    """A new disk of the host under a name that survives a reboot, as udev would give it."""
    device = host.add_disk(size_bytes)
    host.ssh(f"mkdir -p /dev/disk/by-id && ln -sf {device} {BY_ID}")
    return device


def sum_of(host: Host, device: str) -> str:
    return host.ssh(f"sha256sum < {device}").stdout


def refusal(cluster: Cluster, deploy: str = STORAGE) -> str:
    """The words of a refusal; nothing else may have failed."""
    done = cluster.pyinfra("-y", "--fail-percent", "0", deploy=deploy)
    assert done.returncode == 1, done.stdout + done.stderr
    words = re.findall(r"refused: (.*)", done.stdout + done.stderr)
    assert words, done.stdout + done.stderr
    return "\n".join(words)


def until_mounted(cluster: Cluster, folder: Path) -> str:
    """What a run says of making file systems; it is killed before it mounts them."""
    argv = [sys.executable, "-m", "tests.lab.killed_pyinfra", str(folder / "reached"), "5", "-y"]
    done = subprocess.run(
        [*argv, "--limit", "node-b", str(cluster.inventory), STORAGE],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    said = re.search(r"Make file systems on blank.*?-->", done.stdout + done.stderr, re.DOTALL)
    assert said, done.stdout + done.stderr
    return said[0]


DISK = f"storage: {{disks: {{/srv/nvme: {{format: FORMAT, devices: {{node-b: {BY_ID}}}}}}}}}"

# What is on the disk that was declared to be blank; words of the refusal.
DATA = [
    ("mkfs.ext4 -q -U 11111111-2222-4333-8444-555555555555 DEVICE", "holds ext4", "`UUID=1111"),
    ("mkswap DEVICE", "holds swap", "wipefs"),
    ("printf 'LUKS\\272\\276\\0\\1' | dd of=DEVICE status=none", "crypto_LUKS", "wipefs"),
    # a partition table with one partition, entry and signature (no program for it is there)
    (
        "printf '\\0\\0\\2\\0\\203\\0\\0\\0\\0\\10\\0\\0\\0\\120\\0\\0' | dd of=DEVICE bs=1 "
        "seek=446 status=none; printf '\\125\\252' | dd of=DEVICE bs=1 seek=510 status=none",
        "holds dos", "wipefs",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "found", "fix"), DATA)
def test_a_disk_with_data_where_a_blank_one_was_declared_is_left_as_it_is(
    cluster: Callable[[str], Cluster], standins: Cluster, prepare: str, found: str, fix: str
) -> None:
    host = standins.lab.host("node-b")
    device = named_disk(host)
    standins.on("node-b", prepare.replace("DEVICE", device))
    before = sum_of(host, device)
    words = refusal(cluster(DISK.replace("FORMAT", "ext4")))
    assert BY_ID in words
    assert found in words
    assert fix in words
    assert sum_of(host, device) == before
    assert host.ssh("test -e /etc/systemd/system/srv-nvme.mount").returncode != 0


def test_a_mounted_disk_is_not_touched(
    cluster: Callable[[str], Cluster], standins: Cluster
) -> None:
    host = standins.lab.host("node-b")
    device = named_disk(host)
    standins.on("node-b", f"mkfs.ext4 -q {device} && mkdir -p /srv/small && "
                f"mount {device} /srv/small && echo kept > /srv/small/file")  # fmt: skip
    words = refusal(cluster(DISK.replace("FORMAT", "xfs")))
    assert "mounted at /srv/small" in words
    assert standins.on("node-b", "cat /srv/small/file") == "kept\n"


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_blank_declared_disk_gets_its_file_system_once(
    cluster: Callable[[str], Cluster], standins: Cluster, tmp_path: Path, kind: str
) -> None:
    host = standins.lab.host("node-b")
    device = named_disk(host, 320 * MIB)
    made = cluster(DISK.replace("FORMAT", kind))
    probe = f"blkid -p -o value -s TYPE -s UUID {device}"
    # Without udev the mount could not follow: each run is cut off before it.
    assert "Success" in until_mounted(made, tmp_path)
    first = standins.on("node-b", probe)
    assert kind in first.split()
    standins.on("node-b", f"mount {device} /mnt && echo kept > /mnt/file && umount /mnt")
    assert "Success" not in until_mounted(made, tmp_path)
    assert standins.on("node-b", probe) == first
    assert standins.on("node-b", f"mount {device} /mnt; cat /mnt/file; umount /mnt") == "kept\n"
    unit = standins.on("node-b", "cat /etc/systemd/system/srv-nvme.mount")
    uuid = next(word for word in first.split() if "-" in word)
    assert f"What=/dev/disk/by-uuid/{uuid}" in unit


def test_a_declared_disk_that_is_missing_is_an_error_and_no_directory(
    cluster: Callable[[str], Cluster], standins: Cluster
) -> None:
    missing = "storage: {disks: {/srv/nvme: {devices: {node-b: UUID=0badc0de-0000-4000-8000-1}}}}"
    words = refusal(cluster(missing))
    assert "no file system with UUID 0badc0de-0000-4000-8000-1" in words
    assert "lsblk" in words
    assert standins.lab.host("node-b").ssh("test -e /srv/nvme").returncode != 0


def test_a_mount_that_would_hide_files_is_refused(
    cluster: Callable[[str], Cluster], standins: Cluster
) -> None:
    host = standins.lab.host("node-b")
    device = named_disk(host)
    standins.on("node-b", f"mkfs.ext4 -q {device}; mkdir -p /srv/nvme; echo kept > /srv/nvme/model")
    described = f"storage: {{disks: {{/srv/nvme: {{devices: {{node-b: {BY_ID}}}}}}}}}"
    words = refusal(cluster(described))
    assert "/srv/nvme holds /srv/nvme/model" in words
    assert standins.on("node-b", "cat /srv/nvme/model") == "kept\n"


def test_a_disk_too_small_for_the_weights_is_told_before_anything_is_sent(
    cluster: Callable[[str], Cluster], standins: Cluster
) -> None:
    standins.on("node-b", "mkdir -p /srv/small && mount -t tmpfs -o size=40m none /srv/small && "
                "dd if=/dev/zero of=/srv/small/old bs=1M count=39 status=none")  # fmt: skip
    words = refusal(cluster("weights: {directory: /srv/small/models}"), "deploys/cluster.py")
    assert "/srv/small (/srv/small/models) has 1 MiB free" in words
    assert "for the weights" in words
    assert "storage.disks" in words
    assert standins.on("node-b", "ls /srv/small") == "old\n"


def test_a_second_run_on_hosts_with_nothing_declared_changes_nothing(standins: Cluster) -> None:
    assert standins.planned(STORAGE) == {}
