"""What of the storage section only shows against the rest of the description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_cluster.spec.source import Path_

if TYPE_CHECKING:
    from vllm_cluster.spec.checks import Parts

Finding = tuple[Path_, str, str]


def storage_names_hosts(parts: Parts) -> Iterator[Finding]:
    """Devices and clients belong to hosts of the cluster."""
    if parts.storage is None or not parts.hosts_named:
        return
    known = ", ".join(sorted(parts.hosts_named))
    for where, disk in parts.storage.disks.items():
        for name in sorted(set(disk.devices) - parts.hosts_named):
            path = ("storage", "disks", where, "devices", name)
            yield path, f"{name!r}, which is not under hosts", f"one of {known}"
    for where, share in parts.storage.nfs.items():
        for index, name in enumerate(share.clients or []):
            place: Path_ = ("storage", "nfs", where, "clients", index)
            if name == share.server:
                yield place, f"{name!r}, which is the server", "a host that is not it"
            elif name not in parts.hosts_named:
                yield place, f"{name!r}, which is not under hosts", f"one of {known}"


def devices_used_once(parts: Parts) -> Iterator[Finding]:
    """A device has one mount point, and a mount point one source on each host."""
    if parts.storage is None:
        return
    seen: dict[tuple[str, str], str] = {}
    for where, disk in parts.storage.disks.items():
        for host, device in disk.devices.items():
            first = seen.setdefault((host, device), where)
            if first != where:
                path = ("storage", "disks", where, "devices", host)
                yield path, f"{device}, mounted at {first} too", "a device of its own"
    for where in parts.storage.disks.keys() & parts.storage.nfs.keys():
        found = f"{where}, which is under storage.disks too"
        yield ("storage", "nfs", where), found, "a mount point of its own"


def format_fits_device(parts: Parts) -> Iterator[Finding]:
    """A UUID belongs to a file system that is there already."""
    if parts.storage is None:
        return
    for where, disk in parts.storage.disks.items():
        for host, device in disk.devices.items():
            if disk.format and (device.startswith("UUID=") or "/by-uuid/" in device):
                path = ("storage", "disks", where, "devices", host)
                found = f"{device} together with format: {disk.format}"
                accepted = "the device under /dev/disk/by-id, or no format"
                yield path, found, accepted


CHECKS = (storage_names_hosts, devices_used_once, format_fits_device)
