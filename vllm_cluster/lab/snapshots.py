"""Docker stores that are there at once: snapshots of one that was filled before.

A store that was filled once lies in a btrfs file system, in a file in the cache. A host gets a
snapshot of it as its /var/lib/docker, in a moment and whatever its size; Docker's overlay2 runs
on btrfs. What a host then writes is its own.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout
from vllm_cluster.lab.proc import run

DOCKER = "/var/lib/docker"
_FILE_BYTES = 200 << 30  # sparse: the limit, not the size


@dataclass(frozen=True)
class Seed:
    """A btrfs file system in a file. Its subvolume `seed` is the filled store, once it is there."""

    file: Path

    @property
    def at(self) -> Path:
        """Where it is mounted while a host uses it."""
        return self.file.with_suffix(".mounted")

    @property
    def lock(self) -> Path:
        """Held during a change of it."""
        return self.file.with_suffix(".lock")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One change of this file system at a time."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Mounted within, and after that as long as a host has a snapshot. Call it `alone`."""
        self.at.mkdir(exist_ok=True)
        if not self.at.is_mount():
            run(["mount", "-o", "loop,noatime", str(self.file), str(self.at)])
        try:
            yield
        finally:
            if {path.name for path in self.at.iterdir()} <= {"seed"}:
                run(["umount", str(self.at)])

    def make(self) -> None:
        """An empty file system, instead of whatever was there.

        In a new file: one that was there may still be mounted in some process's namespace, and
        what that writes must not end up in this one.
        """
        self.file.unlink(missing_ok=True)
        with self.file.open("xb") as empty:
            empty.truncate(_FILE_BYTES)
        run(["mkfs.btrfs", "--quiet", str(self.file)])

    def subvolume(self, verb: str, *names: str) -> None:
        """btrfs subvolume create, delete or snapshot, of names in this file system."""
        paths = [name if name.startswith("-") else str(self.at / name) for name in names]
        run(["btrfs", "subvolume", verb, *paths])


def _record(host: HostLayout) -> Path:
    """The file that says which seed a host's Docker store is a snapshot of."""
    return host.directory / "docker-seed"


def give(host: HostLayout, seed: Seed, *, source: str = "seed") -> None:
    """Make a snapshot (of an empty subvolume, when source is none) the host's Docker store.

    The host is off and its store empty. Call it with the seed `alone` and `mounted`.
    """
    if any(host.stores[DOCKER].iterdir()):
        raise LabError(f"{host.name}: {DOCKER} is not empty")
    if source:
        seed.subvolume("snapshot", source, host.namespace)
    else:
        seed.subvolume("create", host.namespace)
    _record(host).write_text(f"{seed.file}\n")
    _bind(host, seed)


def _bind(host: HostLayout, seed: Seed) -> None:
    run(["mount", "--bind", str(seed.at / host.namespace), str(host.stores[DOCKER])])


def mount(host: HostLayout) -> None:
    """Mount the host's snapshot, if it has one, where it is not (after a machine's reboot)."""
    if not _record(host).exists() or host.stores[DOCKER].is_mount():
        return
    seed = Seed(Path(_record(host).read_text().strip()))
    with seed.alone(), seed.mounted():
        _bind(host, seed)


def remove(host: HostLayout) -> None:
    """Take the host's snapshot away, unmounted already, and the last one's file system with it."""
    if not _record(host).exists():
        return
    seed = Seed(Path(_record(host).read_text().strip()))
    with seed.alone():
        if seed.file.exists():
            with seed.mounted():
                if (seed.at / host.namespace).exists():
                    seed.subvolume("delete", host.namespace)
        _record(host).unlink()
