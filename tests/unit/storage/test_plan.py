"""From the storage section to mounts, exports and file systems."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_cluster.plan import make_plan
from vllm_cluster.plan.storage import Mount, escaped, host_storage
from vllm_cluster.spec import Cluster, DescriptionError, loads
from vllm_cluster.steps.render import render

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"


def described(storage: str) -> Cluster:
    return loads(PROD.read_text() + "\nstorage:\n" + storage, Path("prod.yaml"))


def refused(storage: str) -> str:
    with pytest.raises(DescriptionError) as caught:
        described(storage)
    return caught.value.text()


BLANK = """
  disks:
    /srv/nvme:
      format: xfs
      devices:
        node-a: /dev/disk/by-id/nvme-SAMSUNG_S5-X
        node-b: /dev/disk/by-id/nvme-SAMSUNG_S6-Y
"""
SHARE = """
  nfs:
    /mnt/models:
      server: node-a
      export: /srv/nvme/models
"""


def test_without_a_storage_section_nothing_is_mounted() -> None:
    description = loads(PROD.read_text(), Path("prod.yaml")).description
    assert host_storage(description, "node-a") == host_storage(description, "node-b")
    assert host_storage(description, "node-a").packages == ()


def test_a_disk_to_be_formatted_has_a_uuid_of_its_own_before_it_is_made() -> None:
    one = host_storage(described(BLANK).description, "node-a")
    again = host_storage(described(BLANK).description, "node-a")
    other = host_storage(described(BLANK).description, "node-b")
    assert one.disks[0].uuid == again.disks[0].uuid != other.disks[0].uuid
    assert one.local[0].what == f"/dev/disk/by-uuid/{one.disks[0].uuid}"
    assert one.packages == ("xfsprogs",)


def test_a_local_disk_never_stops_the_boot() -> None:
    (mount,) = host_storage(described(BLANK).description, "node-a").local
    assert mount.options == ("noatime", "nofail")


def test_a_disk_that_comes_late_is_waited_for_unless_the_boot_itself_would_wait() -> None:
    (mount,) = host_storage(described(BLANK).description, "node-a").local
    plan = make_plan(described(BLANK).description)

    def unit(where: str) -> str:
        there = replace(mount, where=where)
        return render("/etc/systemd/system/storage.mount", plan=plan, mount=there)

    for where in ("/srv/nvme", "/var/lib/docker", "/var/lib/vllm-cluster"):
        assert "TimeoutSec=infinity" in unit(where)
    for where in ("/var/log", "/var/lib/cloud"):
        assert "TimeoutSec" not in unit(where)
        assert not replace(mount, where=where).awaited
    assert mount.device_unit == f"{escaped(mount.what)}.device"
    assert mount.device_unit.startswith(r"dev-disk-by\x2duuid-")


def test_a_bind_mount_has_no_device() -> None:
    found = host_storage(described(BLANK + SHARE).description, "node-a")
    assert [m.device_unit for m in found.local if "bind" in m.options] == [""]


def test_a_declared_uuid_is_mounted_as_it_is_and_never_formatted() -> None:
    text = "  disks: {/data: {devices: {node-a: UUID=3f9c0d5e-0000-4000-8000-000000000001}}}\n"
    found = host_storage(described(text).description, "node-a")
    assert found.disks[0].format is None
    assert found.local[0].what == "/dev/disk/by-uuid/3f9c0d5e-0000-4000-8000-000000000001"
    assert host_storage(described(text).description, "node-b").local == ()


def test_the_server_exports_to_the_other_hosts_and_shows_itself_the_same_path() -> None:
    description = described(BLANK + SHARE).description
    server, client = host_storage(description, "node-a"), host_storage(description, "node-b")
    options = "ro,sync,no_subtree_check,root_squash"
    assert server.exports[0].line() == f"/srv/nvme/models 192.168.1.11({options})"
    assert server.shares == ()
    assert [(m.where, m.what) for m in server.local if "bind" in m.options] == [
        ("/mnt/models", "/srv/nvme/models")
    ]
    assert client.exports == ()
    assert client.shares[0].what == "192.168.1.10:/srv/nvme/models"
    assert "nfs-common" in client.packages
    assert "nfs-kernel-server" in server.packages


def test_a_share_waits_for_a_server_that_boots_later() -> None:
    (share,) = host_storage(described(SHARE).description, "node-b").shares
    retry = next(option for option in share.options if option.startswith("retry="))
    assert int(retry.removeprefix("retry=")) >= 24 * 60, "minutes"
    assert {"_netdev", "nofail", "hard"} <= set(share.options)


def test_a_share_of_a_foreign_server_is_mounted_on_every_host() -> None:
    text = "  nfs: {/mnt/models: {server: nas.example.com, export: /vol/models}}\n"
    description = described(text).description
    for name in ("node-a", "node-b"):
        found = host_storage(description, name)
        assert [share.what for share in found.shares] == ["nas.example.com:/vol/models"]
        assert found.exports == ()


def test_the_innermost_declared_mount_holds_a_path() -> None:
    found = host_storage(described(BLANK + SHARE).description, "node-a")
    holder = found.holding("/srv/nvme/models/llama")
    assert holder is not None
    assert holder.where == "/srv/nvme"
    assert found.holding("/srv/nvme2") is None


# What is written, words of what is wrong, words of what is right.
BROKEN = [
    ("  disks: {/srv/x: {devices: {node-a: /dev/nvme0n1}}}", "survives a reboot", "by-id"),
    ("  disks: {/srv/x: {devices: {node-a: /dev/sdb1}}}", "survives a reboot", "by-id"),
    ("  disks: {/srv/x: {devices: {node-c: UUID=3f9c-11ab}}}", "not under hosts", "node-a, node-b"),
    ("  disks: {/: {devices: {node-a: UUID=3f9c-11ab}}}", "'/'", "no directory of the system"),
    ("  disks: {/usr/share: {devices: {node-a: UUID=3f9c-11ab}}}", "system", "mount points"),
    ("  disks: {srv: {devices: {node-a: UUID=3f9c-11ab}}}", "not an absolute", "absolute paths"),
    ("  disks: {/srv/x: {format: btrfs, devices: {node-a: /dev/disk/by-id/a}}}", "btrfs", "ext4"),
    ("  disks: {/srv/x: {format: ext4, devices: {node-a: UUID=3f9c-11ab}}}", "format", "by-id"),
    ("  disks: {/srv/x: {devices: {}}}", "{}", "by-id"),
    (
        "  disks: {/srv/x: {devices: {node-a: UUID=3f9c-11ab}},"
        " /srv/y: {devices: {node-a: UUID=3f9c-11ab}}}",
        "mounted at /srv/x too", "a device of its own",
    ),
    ("  disks: {/srv/x: {devices: {node-a: UUID=3f9c-11ab}, options: [a b]}}", "'a b'", "noatime"),
    ("  nfs: {/mnt/m: {server: node-a, export: models}}", "absolute", "absolute path"),
    ("  nfs: {/mnt/m: {server: 'a b', export: /m}}", "not a host", "a host of this cluster"),
    (
        "  nfs: {/mnt/m: {server: node-a, export: /m, clients: [node-a]}}",
        "which is the server", "a host that is not it",
    ),
    (
        "  nfs: {/mnt/m: {server: node-a, export: /m, clients: [node-z]}}",
        "not under hosts", "node-a, node-b",
    ),
    ("  reserve: much", "not a size", "5GiB"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found", "accepted"), BROKEN)
def test_a_storage_section_that_cannot_work_is_refused(
    text: str, found: str, accepted: str
) -> None:
    words = refused(text + "\n")
    assert "storage" in words
    assert found in words
    assert accepted in words


PATHS = ["/srv/nvme", "/srv/nvme-1", "/srv/.hidden/x", "/.x/y", "/a@b=c+d/e_f", "/mnt/a.b-c/d"]


@pytest.mark.skipif(shutil.which("systemd-escape") is None, reason="needs systemd-escape")
@pytest.mark.parametrize("path", PATHS)
def test_units_are_named_as_systemd_names_them(path: str) -> None:
    argv = ["systemd-escape", "--path", path]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert escaped(path) == said


def test_lost_options_are_those_that_the_kernel_would_show() -> None:
    mount = Mount("/srv/x", "/dev/x", "ext4", ("noatime", "nofail", "commit=60"), False, "disk")
    assert mount.lost_options("rw,relatime,errors=remount-ro") == ["noatime"]
    assert mount.lost_options("rw,noatime") == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("host", ["node-a", "node-b"])
def test_systemd_itself_finds_nothing_wrong_with_the_units(host: str, tmp_path: Path) -> None:
    plan = make_plan(described(BLANK + SHARE).description)
    storage = plan.hosts[host].storage
    assert storage.local
    for mount in (*storage.local, *storage.shares):
        file = tmp_path / mount.unit
        file.write_text(render("/etc/systemd/system/storage.mount", plan=plan, mount=mount))
        argv = ["systemd-analyze", "verify", "--man=no", str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        words = [line for line in done.stderr.splitlines() if mount.unit in line]
        assert words == [], file.read_text()
