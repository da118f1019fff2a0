"""Further disks of a host: files on this machine behind loop devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vllm_cluster.lab.errors import WrongValueError
from vllm_cluster.lab.layout import HostLayout
from vllm_cluster.lab.proc import run


def _folder(host: HostLayout) -> Path:
    return host.directory / "disks"


def _loop_of(file: Path) -> str | None:
    said = run(["losetup", "--noheadings", "--output", "NAME", "--associated", str(file)]).stdout
    return said.split()[0] if said.split() else None


def add(host: HostLayout, size_bytes: int) -> str:
    """A new disk without a file system; the device's path, the same on this machine and inside.

    Raises WrongValueError for a size below 1 MiB.
    """
    if size_bytes < 1 << 20:
        raise WrongValueError(f"disk of {size_bytes} bytes: at least 1 MiB")
    folder = _folder(host)
    folder.mkdir(exist_ok=True)
    file = folder / f"{len(list(folder.iterdir()))}.img"
    with file.open("xb") as empty:
        empty.truncate(size_bytes)
    return devices(host)[-1]


def devices(host: HostLayout) -> list[str]:
    """The loop devices of a host's disks in the order of their making, set up where they are not.

    After a reboot of the machine they may have other numbers than before.
    """
    folder = _folder(host)
    files = sorted(folder.iterdir(), key=lambda f: int(f.stem)) if folder.is_dir() else []
    return [
        _loop_of(file) or run(["losetup", "--find", "--show", str(file)]).stdout.strip()
        for file in files
    ]


def make_node(root: Path, device: str) -> None:
    """The device's file under another root's /dev."""
    node = root / device.lstrip("/")
    if not node.exists():
        os.mknod(node, 0o660 | stat.S_IFBLK, Path(device).stat().st_rdev)


def remove(host: HostLayout) -> None:
    """Take all further disks away."""
    folder = _folder(host)
    for file in list(folder.iterdir()) if folder.is_dir() else []:
        device = _loop_of(file)
        if device is not None:
            run(["losetup", "--detach", device])
        file.unlink()
