"""Whether a disk may get a file system, and whether what is mounted is what shall be."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_cluster.plan.storage import LocalDisk, Mount


@dataclass(frozen=True)
class Device:
    """A block device as a host knows it; `real` is empty when there is none of that name.

    `real` is the kernel's name, `number` its major:minor.
    `signature` is what blkid's low-level probe finds (`ext4`, `LVM2_member`, `dos` for a
    partition table, `ambivalent` for several); `users` says who has it: partitions on it,
    mount points, swap, device-mapper targets.
    """

    real: str
    number: str
    signature: str
    uuid: str
    users: tuple[str, ...]


@dataclass(frozen=True)
class Mounted:
    """What is at a mount point. `source` is empty when nothing is mounted.

    `number` is its device's major:minor. `files` is one file that lies in the bare directory,
    which a mount would hide. `same`: the directory is the very one that a bind mount shall show.
    """

    source: str
    number: str
    fs_type: str
    options: str
    files: str
    same: bool


def disk_problem(disk: LocalDisk, found: Device) -> str:
    """Why `disk` cannot be used as it is found, with the fix; empty when it can."""
    if not found.real:
        return _absent(disk)
    held = ", ".join(found.users)
    if not found.signature:
        if disk.format is None:
            return (
                f"{disk.device} holds no file system; write `format: ext4` beside it under "
                f"storage.disks to have one made"
            )
        return f"{disk.device} is in use ({held}); nothing was changed" if found.users else ""
    if disk.format is not None and found.uuid.lower() != disk.uuid:
        keep = f"`UUID={found.uuid}`" if found.uuid else "another device"
        return (
            f"{disk.device} shall be blank for {disk.where}, but holds {found.signature}"
            + (f" ({held})" if held else "")
            + f"; nothing was changed. To keep what is on it write {keep} under "
            f"storage.disks; to lose it run `wipefs --all {found.real}` there yourself"
        )
    if disk.format is not None and found.signature != disk.format:
        return (
            f"{disk.device} was made {found.signature} for {disk.where} earlier, and shall be "
            f"{disk.format}; nothing was changed"
        )
    return ""


def _absent(disk: LocalDisk) -> str:
    if disk.uuid and disk.format is None:
        return (
            f"no file system with UUID {disk.uuid}, which {disk.where} needs, is on this host; "
            "`lsblk --output NAME,SIZE,FSTYPE,UUID` there shows what is"
        )
    return (
        f"{disk.device}, which {disk.where} needs, is not on this host; "
        "`ls -l /dev/disk/by-id` there shows what is"
    )


def needs_format(disk: LocalDisk, found: Device) -> bool:
    """Whether the file system is still to be made; ask `disk_problem` first."""
    return disk.format is not None and not found.signature


def mount_problem(mount: Mount, found: Mounted, device: Device | None) -> str:
    """Why `mount` cannot be made over what is found; empty when it can or is there."""
    if not found.source:
        if found.files:
            return (
                f"{mount.where} holds {found.files} on the disk beneath; the mount would hide it. "
                "Move it away and run again"
            )
        return ""
    if is_mounted(mount, found, device):
        return ""
    return (
        f"{found.source} ({found.fs_type}) is mounted at {mount.where}, where {mount.what} shall "
        "be; unmount it and take it out of /etc/fstab"
    )


def is_mounted(mount: Mount, found: Mounted, device: Device | None) -> bool:
    """Whether the right thing is mounted. `device` is the block device of a local mount."""
    if mount.network:
        return found.source == mount.what and found.fs_type.startswith("nfs")
    if "bind" in mount.options:
        return found.same
    return device is not None and (
        found.number == device.number or found.source in {device.real, mount.what}
    )
