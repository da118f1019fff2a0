"""A cgroup (v2) of its own for every host, so that no host's systemd sees another's units."""

from __future__ import annotations

from pathlib import Path

from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import wait_until


def _hierarchy() -> Path:
    """Where cgroup v2 is mounted: alone, or beside the v1 hierarchies."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2":
            return Path(mount.split()[4])
    raise LabError("this machine has no cgroup v2 mounted, and systemd in the hosts needs it")


def lab_path(layout: Layout) -> Path:
    """The lab's cgroup."""
    return _hierarchy() / f"vc-lab-{layout.name}"


def make(layout: Layout, host: HostLayout) -> Path:
    """A host's cgroup, empty."""
    remove(layout, host)
    path = lab_path(layout) / host.name
    path.mkdir(parents=True)
    return path


def remove(layout: Layout, host: HostLayout) -> None:
    """Remove a host's cgroup; its processes are gone, at the latest in a moment."""
    _remove_tree(lab_path(layout) / host.name)


def remove_lab(layout: Layout) -> None:
    """Remove the lab's cgroup with all that is in it."""
    _remove_tree(lab_path(layout))


def _remove_tree(path: Path) -> None:
    if not path.is_dir():
        return

    def empty() -> bool:
        return "populated 0" in (path / "cgroup.events").read_text()

    if not wait_until(empty, timeout_s=10):
        raise LabError(f"{path}: processes are still in it")
    inner = [p for p in path.rglob("*") if p.is_dir()]
    for folder in [*sorted(inner, key=lambda p: len(p.parts), reverse=True), path]:
        folder.rmdir()
