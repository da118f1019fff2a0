"""What a host mounts, makes and exports. Pure: the step acts on it, the doctor checks it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_cluster.plan import paths
from vllm_cluster.spec.storage_model import Disk, Share

if TYPE_CHECKING:
    from vllm_cluster.spec.model import Description

BY_UUID = "/dev/disk/by-uuid"
# Of this project alone, so that no other tool can come upon the same file system's UUID.
_NAMESPACE = uuid.UUID("5f1c3f0e-6a52-5d0b-9a53-0f3f4f1b7c11")
# mount.nfs tries again for so long (nfs(5), retry=): longer than a server is away unnoticed.
_NFS_RETRY_MINUTES = 7 * 24 * 60
_EXPORTER_PACKAGE = "nfs-kernel-server"
_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
# Beneath /var the system's own units are that a boot needs; these directories are none of theirs.
_LATE = (paths.STATE, "/var/lib/docker", "/var/lib/containerd")
# Flags that the kernel shows for every mount that has them (mountinfo, proc(5)).
_SHOWN = ("ro", "rw", "noatime", "nodiratime", "nodev", "nosuid", "noexec")


@dataclass(frozen=True)
class LocalDisk:
    """A disk of a host. `uuid` is that of the file system that shall be there; empty: any."""

    where: str
    device: str
    format: str | None
    uuid: str


@dataclass(frozen=True)
class Mount:
    """A mount as its unit describes it."""

    where: str
    what: str
    fs_type: str | None
    options: tuple[str, ...]
    network: bool
    title: str

    @property
    def unit(self) -> str:
        """The unit's name, which systemd derives from the mount point (systemd.mount(5))."""
        return f"{escaped(self.where)}.mount"

    @property
    def device_unit(self) -> str:
        """The unit of the device that is mounted; empty where it is none."""
        return f"{escaped(self.what)}.device" if self.what.startswith("/dev/") else ""

    @property
    def awaited(self) -> bool:
        """Whether what needs it waits without end: nobody could log in to a boot that waits so."""
        late = any(_beneath(self.where, path) for path in _LATE)
        return self.network or late or not _beneath(self.where, "/var")

    def lost_options(self, actual: str) -> list[str]:
        """Declared flags that the mounted file system (its options as text) does not have."""
        have = set(actual.split(","))
        return [o for o in self.options if o in _SHOWN and o not in have]


@dataclass(frozen=True)
class Export:
    """A directory that this host's NFS server offers, and to which addresses."""

    path: str
    clients: tuple[str, ...]
    read_only: bool

    def options(self) -> str:
        """Options of exports(5). Sub-tree checks break renames; root of a client is nobody."""
        return f"{'ro' if self.read_only else 'rw'},sync,no_subtree_check,root_squash"

    def line(self) -> str:
        """The line of an exports file."""
        return f"{self.path} " + " ".join(f"{c}({self.options()})" for c in self.clients)


@dataclass(frozen=True)
class HostStorage:
    """All that the description asks of one host's storage."""

    disks: tuple[LocalDisk, ...] = ()
    local: tuple[Mount, ...] = ()
    shares: tuple[Mount, ...] = ()
    exports: tuple[Export, ...] = ()
    packages: tuple[str, ...] = field(default=())

    def holding(self, path: str) -> Mount | None:
        """The declared mount on which `path` lies, the innermost; None when it is on none."""
        over = [m for m in (*self.local, *self.shares) if _beneath(path, m.where)]
        return max(over, key=lambda mount: len(mount.where), default=None)


def host_storage(description: Description, name: str) -> HostStorage:
    """What `name`, a host of `description`, mounts, makes and exports."""
    storage = description.storage
    disks = tuple(
        _local_disk(name, where, disk)
        for where, disk in sorted(storage.disks.items())
        if name in disk.devices
    )
    local = tuple(_disk_mount(disk, storage.disks[disk.where]) for disk in disks)
    exports = tuple(_exports(description, name))
    binds, shares = _share_mounts(description, name)
    packages = {_PACKAGES[disk.format] for disk in disks if disk.format}
    packages |= {_EXPORTER_PACKAGE} if exports else set()
    packages |= {"nfs-common"} if shares else set()
    return HostStorage(disks, (*local, *binds), shares, exports, tuple(sorted(packages)))


def escaped(path: str) -> str:
    """`path` as part of a unit's name (systemd.unit(5), STRING ESCAPING FOR INCLUSION)."""
    text = path.strip("/").replace("/", "-\0")
    keep = re.sub(r"[^A-Za-z0-9:_.\x00-]", lambda m: f"\\x{ord(m[0]):02x}", text)
    # A dash of the path itself is escaped, a dash that stands for a slash is not.
    keep = keep.replace("-\0", "\0").replace("-", "\\x2d").replace("\0", "-")
    return f"\\x2e{keep[1:]}" if keep.startswith(".") else keep


def _beneath(path: str, where: str) -> bool:
    return path == where or path.startswith(f"{where}/")


def _local_disk(host: str, where: str, disk: Disk) -> LocalDisk:
    device = disk.devices[host]
    if device.startswith("UUID="):
        # blkid and udev print UUIDs of ext4 and xfs in lower case, of vfat in upper case.
        wanted = device.removeprefix("UUID=")
        return LocalDisk(where, f"{BY_UUID}/{wanted}", None, wanted)
    # Ours to choose, so it is known before the file system is made, and a wiped host finds its
    # own disk again.
    made = str(uuid.uuid5(_NAMESPACE, f"{host} {where} {device}")) if disk.format else ""
    return LocalDisk(where, device, disk.format, made)


def _disk_mount(local: LocalDisk, disk: Disk) -> Mount:
    what = f"{BY_UUID}/{local.uuid}" if local.uuid else local.device
    # nofail: a missing disk must not take the host's own boot with it.
    options = (*disk.options, "nofail")
    return Mount(local.where, what, local.format, options, network=False, title="local disk")


def _exports(description: Description, name: str) -> Iterator[Export]:
    for _, share in sorted(description.storage.nfs.items()):
        clients = _clients(description, share)
        if share.server == name and clients:
            addresses = tuple(str(description.hosts[client].address) for client in clients)
            yield Export(share.export, addresses, share.read_only)


def _clients(description: Description, share: Share) -> list[str]:
    if share.clients is not None:
        return share.clients
    return [name for name in description.hosts if name != share.server]


def _share_mounts(
    description: Description, name: str
) -> tuple[tuple[Mount, ...], tuple[Mount, ...]]:
    """Bind mounts (on the server itself: NFS from itself can deadlock) and NFS mounts."""
    binds: list[Mount] = []
    shares: list[Mount] = []
    for where, share in sorted(description.storage.nfs.items()):
        if share.server == name and share.export != where:
            options = ("bind", "nofail")
            title = "the exported directory"
            binds.append(Mount(where, share.export, "none", options, network=False, title=title))
        elif share.server != name and name in _clients(description, share):
            shares.append(_nfs_mount(description, where, share))
    return tuple(binds), tuple(shares)


def _nfs_mount(description: Description, where: str, share: Share) -> Mount:
    server = description.hosts.get(share.server)
    address = str(server.address) if server else share.server
    options = (
        "nfsvers=4.2",
        "hard",  # a read waits for a server that is away instead of failing in the middle
        f"retry={_NFS_RETRY_MINUTES}",
        "ro" if share.read_only else "rw",
        *share.options,
        "_netdev",
        "nofail",
    )
    title = f"NFS from {share.server}"
    return Mount(where, f"{address}:{share.export}", "nfs4", options, network=True, title=title)
