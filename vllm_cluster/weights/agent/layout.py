"""Where things lie under the weights root of a host, and what may be seen there.

ROOT/<slug>/<revision>              a link to the placed copy: the path vLLM is given
ROOT/.store/<slug>@<id16>/          placed: complete, verified, synced; never written again
ROOT/.staging/<key>/                being made; same file system, published by one rename
ROOT/.jobs/<key>.{lock,json,job}    who works on it, how far it is, what was asked
ROOT/.pins/<slug>@<id16>/<user>     who uses a placed copy: it is not removed while one does
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.weights.agent.errors import AlreadyRunningError, WeightsError
from vllm_cluster.weights.manifest import (
    META_DIR,
    Manifest,
    ManifestError,
    check_revision,
    parse_manifest,
    slug_of,
)

MANIFEST_FILE = "manifest.json"
STAMPS_FILE = "stamps.json"


@dataclass(frozen=True)
class Placed:
    """A complete copy on this host."""

    key: str
    directory: Path
    manifest: Manifest


class Layout:
    """The paths under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.store = self.root / ".store"
        self.staging = self.root / ".staging"
        self.jobs = self.root / ".jobs"
        self.pins = self.root / ".pins"

    def make(self) -> None:
        """Create the root's own directories. Raises WeightsError when they span file systems."""
        for path in (self.store, self.staging, self.jobs, self.pins):
            path.mkdir(parents=True, exist_ok=True)
        self.jobs.chmod(0o700)
        if len({path.stat().st_dev for path in (self.store, self.staging)}) != 1:
            raise WeightsError(f"{self.store} and {self.staging} are on different file systems")

    def placed_dir(self, key: str) -> Path:
        return self.store / key

    def ref(self, model: str, revision: str) -> Path:
        return self.root / slug_of(model) / check_revision(revision)

    def placed(self, key: str) -> Placed | None:
        """The placed copy of that key, or None. WeightsError when its manifest is unreadable."""
        directory = self.placed_dir(key)
        try:
            data = (directory / META_DIR / MANIFEST_FILE).read_bytes()
        except FileNotFoundError:
            if directory.exists():
                raise WeightsError(
                    f"{directory} has lost its manifest; remove it and place it again",
                    file=f"{META_DIR}/{MANIFEST_FILE}",
                ) from None
            return None
        try:
            manifest = parse_manifest(data)
        except ManifestError as exc:
            raise WeightsError(str(exc), file=str(directory / META_DIR / MANIFEST_FILE)) from exc
        if key != key_of(manifest):
            raise WeightsError(
                f"the manifest is that of {key_of(manifest)}",
                file=str(directory / META_DIR / MANIFEST_FILE),
            )
        return Placed(key, directory, manifest)

    def placed_keys(self) -> list[str]:
        if not self.store.is_dir():
            return []
        return sorted(path.name for path in self.store.iterdir() if path.is_dir())

    def find(self, identity: str) -> Placed | None:
        """The placed copy with this identity, or None."""
        for key in self.placed_keys():
            if key.endswith("@" + identity[:16]):
                placed = self.placed(key)
                if placed is not None and placed.manifest.identity == identity:
                    return placed
        return None


def adoption_key(model: str, revision: str) -> str:
    """The key of a job that begins before the identity is known. Raises ManifestError."""
    return f"{slug_of(model)}@{check_revision(revision)}.adopt"


def key_of(manifest: Manifest) -> str:
    return key_for(manifest.model, manifest.identity)


def key_for(model: str, identity: str) -> str:
    return f"{slug_of(model)}@{identity[:16]}"


@contextmanager
def job_lock(layout: Layout, key: str) -> Iterator[None]:
    """Hold the job; raise AlreadyRunningError when another process of this host does."""
    layout.make()
    handle = os.open(layout.jobs / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(handle, 20, 0).decode() or "?"
            raise AlreadyRunningError(
                f"{key} is already being worked on by process {pid}"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def lock_holder(layout: Layout, key: str) -> int | None:
    """The process that holds the job's lock now, or None."""
    try:
        handle = os.open(layout.jobs / f"{key}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(handle, 20, 0).decode()
        return int(text) if text.isdigit() else None
    finally:
        os.close(handle)
    return None


def written_bytes(directory: Path) -> int:
    """What the files below take on the disk; files may come and go meanwhile."""
    count = 0
    for here, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                count += (Path(here) / name).lstat().st_blocks * 512
    return count


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it; nothing when it is not there."""
    import shutil  # noqa: PLC0415  (brings bz2 and lzma: 30 ms that no quick command needs)

    shutil.rmtree(path, ignore_errors=not path.exists())


def sync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes, mode: int = 0o644, *, sync: bool = True) -> None:
    """Replace a file by another in one step, so that no reader sees half of it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
    if sync:
        sync_dir(path.parent)


def write_json(path: Path, value: object, mode: int = 0o644, *, sync: bool = True) -> None:
    write_file(path, json.dumps(value, indent=1, sort_keys=True).encode(), mode, sync=sync)


def check_space(
    layout: Layout, needed_bytes: int, *, reserve_bytes: int, mountpoint: str | None, file: str
) -> None:
    """Refuse before the first byte: too little room, or a root whose disk is not mounted.

    needed_bytes is what is still to be written; reserve_bytes is to stay free. An unmounted disk
    leaves its empty mount point behind, and the model would fill the system's disk.
    """
    if mountpoint is not None:
        mount = Path(mountpoint)
        if not mount.is_mount():
            raise WeightsError(
                f"{mountpoint} is not mounted; {layout.root} would fill another disk"
            )
        if layout.store.stat().st_dev != mount.stat().st_dev:
            raise WeightsError(f"{layout.root} is not on the file system mounted at {mountpoint}")
    disk = os.statvfs(layout.store)
    free = disk.f_bavail * disk.f_frsize
    if free < needed_bytes + reserve_bytes:
        raise WeightsError(
            f"{layout.root} has {free / 2**30:.2f} GiB free, needs {needed_bytes / 2**30:.2f} GiB"
            f" and {reserve_bytes / 2**30:.2f} GiB to spare",
            file=file,
        )
