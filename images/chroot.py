"""Run a program inside a root file system, in namespaces that vanish with it.

The program sees the tree as /, its own /proc, /tmp, /root, /run and /dev/shm, and nothing of
what it mounts stays: mounts and processes live in namespaces that end with the program.
Needs root.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

_OWN_FOLDERS = ("/tmp", "/root", "/run", "/dev/shm")


def command(
    root: Path,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    binds: Mapping[Path, str] | None = None,
    writable: bool = False,
    own_network: bool = False,
) -> list[str]:
    """Return the command line that runs ``argv`` with ``root`` as its /.

    ``env`` is the whole environment. ``binds`` puts folders of this machine at paths of the tree
    (which must exist there). Without ``writable`` the tree itself is read-only.
    With ``own_network`` there is no network but a loopback of its own.
    """
    at = shlex.quote(str(root))
    lines = [
        "set -e",
        f"mount --bind {at} {at}",
        f"mount -t proc proc {at}/proc",
        f"mount --rbind /sys {at}/sys",
        f"mount --rbind /dev {at}/dev",
        *(f"mount -t tmpfs tmpfs {at}{folder}" for folder in _OWN_FOLDERS),
        *(
            f"mount --bind {shlex.quote(str(source))} {at}{shlex.quote(target)}"
            for source, target in (binds or {}).items()
        ),
        *([] if writable else [f"mount -o remount,bind,ro {at}"]),
        *(["ip link set lo up"] if own_network else []),
        f"exec chroot {at} env -i "
        + shlex.join([*(f"{key}={value}" for key, value in env.items()), *argv]),
    ]
    return [
        "unshare",
        "--mount",
        "--propagation=private",
        "--ipc",
        "--pid",
        "--fork",
        "--kill-child",
        *(["--net"] if own_network else []),
        "sh",
        "-c",
        "\n".join(lines),
    ]
