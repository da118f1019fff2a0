"""Disks and network shares of the hosts, and how much room must stay free on them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from vllm_cluster.spec.types import AbsolutePath, Bytes, HostName

# Names of udev that survive a reboot (systemd's rules.d/60-persistent-storage.rules). /dev/sdb
# and /dev/nvme1n1 do not: https://github.com/systemd/systemd/issues/5836.
_DEVICE = re.compile(
    r"^(UUID=[0-9A-Fa-f-]{4,36}"
    r"|/dev/disk/by-(id|path|uuid|partuuid|label|partlabel)/[A-Za-z0-9._:+@=-]+"
    r"|/dev/(mapper|md)/[A-Za-z0-9._:+@=-]+)$"
)
_OPTION = re.compile(r"^[a-z][A-Za-z0-9_.:/-]*(=[A-Za-z0-9_.:/-]+)?$")
_SERVER = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$")
# Mounting over one of these takes away what the system or the cluster itself works with.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _device(value: str) -> str:
    if not _DEVICE.match(value):
        raise ValueError("not a name that survives a reboot")
    return value


def _option(value: str) -> str:
    if not _OPTION.match(value) or value in {"auto", "noauto", "user", "users", "bg"}:
        raise ValueError("not an option of a mount unit")
    return value


def _server(value: str) -> str:
    if not _SERVER.match(value):
        raise ValueError("not a host")
    return value


def _mount_point(value: str) -> str:
    first = value.split("/")[1]
    if first in _SYSTEM or value in {"/var", "/var/lib", "/tmp", "/var/tmp", "/root", "/home"}:
        raise ValueError("a directory of the system")
    return value


MountPoint = Annotated[AbsolutePath, AfterValidator(_mount_point)]
Device = Annotated[str, AfterValidator(_device)]
Option = Annotated[str, AfterValidator(_option)]

_DEVICES = (
    "for each host that has the disk: UUID=… of its file system, or its name under "
    "/dev/disk/by-id (names such as /dev/nvme0n1 change between boots)"
)


class Disk(_Section):
    """A local disk: the same mount point on every host that has one."""

    devices: dict[HostName, Device] = Field(min_length=1, description=_DEVICES)
    format: Literal["ext4", "xfs"] | None = Field(
        None,
        description="ext4 or xfs: make this file system if the device is blank; "
        "leave it out to use what is there",
    )
    options: list[Option] = Field(
        default_factory=lambda: ["noatime"], description="mount options, such as [noatime]"
    )


class Share(_Section):
    """A directory of an NFS server, mounted on the other hosts."""

    server: Annotated[str, AfterValidator(_server)] = Field(
        description="a host of this cluster, which then exports the directory, or the name or "
        "IPv4 address of another server"
    )
    export: AbsolutePath = Field(description="the directory on the server: an absolute path")
    clients: list[HostName] | None = Field(
        None, description="the hosts that mount it; default: all but the server"
    )
    read_only: bool = Field(True, description="true or false: whether clients may write")
    options: list[Option] = Field(
        default_factory=lambda: ["noatime"], description="further mount options"
    )


class Storage(_Section):
    """File systems that the cluster needs, and the room that must stay on them."""

    disks: dict[MountPoint, Disk] = Field(
        default_factory=dict,
        description="mount points (absolute paths, no directory of the system), each with devices",
    )
    nfs: dict[MountPoint, Share] = Field(
        default_factory=dict,
        description="mount points (absolute paths, no directory of the system), each with "
        "server and export",
    )
    reserve: Bytes = Field(
        2**30,
        ge=0,
        description="what must stay free on every file system, such as 5GiB; a full one stops "
        "Docker and the journal",
    )
    image: Bytes | None = Field(
        None,
        ge=0,
        description="size of the unpacked image, such as 30GiB; default: the size of "
        "image.archive, or 30GiB for one that is pulled",
    )
