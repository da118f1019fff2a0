"""A cgroup (v2) of its own for every host, so that no host's systemd sees another's units."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import wait_until


def _hierarchies(kind: str) -> list[Path]:
    """Where hierarchies of a kind are mounted: "cgroup2", or "cgroup" for the older ones."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if source.split()[0] == kind:
            found.append(Path(mount.split()[4]))
    return found


def make(layout: Layout, host: HostLayout) -> Path:
    """A host's cgroup, empty."""
    remove(layout, host)
    at = _hierarchies("cgroup2")
    if not at:
        raise LabError("this machine has no cgroup v2 mounted, and systemd in the hosts needs it")
    path = at[0] / _name(layout) / host.name
    path.mkdir(parents=True)
    return path


def remove(layout: Layout, host: HostLayout) -> None:
    """Remove a host's cgroup; its processes are gone, at the latest in a moment."""
    _remove_everywhere(Path(_name(layout)) / host.name)


def remove_lab(layout: Layout) -> None:
    """Remove the lab's cgroup with all that is in it."""
    _remove_everywhere(Path(_name(layout)))


def _name(layout: Layout) -> str:
    return f"vc-lab-{layout.name}"


def _remove_everywhere(path: Path) -> None:
    # beside v1 hierarchies systemd-nspawn makes the same path in the one named systemd
    for hierarchy in _hierarchies("cgroup2") + _hierarchies("cgroup"):
        top = hierarchy / path
        if not wait_until(partial(_removed, top), timeout_s=10):
            raise LabError(f"{top}: processes are still in it")


def _removed(top: Path) -> bool:
    """Remove a cgroup with those below; False while the kernel holds one for its processes."""
    if not top.is_dir():
        return True
    inner = [path for path in top.rglob("*") if path.is_dir()]
    for folder in [*sorted(inner, key=lambda path: len(path.parts), reverse=True), top]:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOENT):
                return False
            raise
    return True
