"""Whose labs are on this machine.

Namespaces are named by the lab alone, and the kernel is one for all labs: what belongs to no
single checkout is kept in /run, one file a lab.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_cluster.lab import kernel_settings
from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import OWNERS, Layout

_SETTINGS = OWNERS / ".kernel-settings.json"


@contextmanager
def _alone() -> Iterator[None]:
    OWNERS.mkdir(parents=True, exist_ok=True)
    with (OWNERS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def must_be_ours(layout: Layout) -> None:
    """Raises LabError when a lab of this name belongs to another folder that is still there."""
    try:
        owner = Path(layout.owner.read_text().strip())
    except FileNotFoundError:
        return
    if owner != layout.directory and owner.exists():
        raise LabError(
            f"lab {layout.name} on this machine belongs to {owner}; give another name with --lab"
        )


def claim(layout: Layout) -> None:
    """Take the lab's name for its folder; the first lab keeps the kernel's settings."""
    with _alone():
        must_be_ours(layout)
        kernel_settings.keep(_SETTINGS)
        kernel_settings.make_room()
        layout.owner.write_text(f"{layout.directory}\n")


def release(layout: Layout) -> list[str]:
    """Give the name back. The last lab puts the kernel's settings back: a line for each."""
    with _alone():
        layout.owner.unlink(missing_ok=True)
        others = [path for path in OWNERS.iterdir() if not path.name.startswith(".")]
        return [] if others else kernel_settings.put_back(_SETTINGS)
