"""Is a placed copy what its manifest says: a glance at every run, every byte when asked."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vllm_cluster.weights.agent.layout import Placed
from vllm_cluster.weights.agent.pool import in_threads
from vllm_cluster.weights.agent.publish import Stamp, read_stamps, stamp_of
from vllm_cluster.weights.manifest import META_DIR, Chunk

_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


@dataclass
class Findings:
    """What differs, by path. `suspect` files have the right size but were touched since; of those,
    `unproven` ones have no stamp at all."""

    missing: list[str] = field(default_factory=list)
    wrong_size: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    suspect: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    damaged: dict[str, list[int]] = field(default_factory=dict)  # path: numbers of bad chunks
    read_bytes: int = 0
    stamps: dict[str, Stamp] = field(default_factory=dict)  # of what was read, from before that
    noted: dict[str, Stamp] = field(default_factory=dict)  # what was verified before the reading

    @property
    def ok(self) -> bool:
        return not (self.missing or self.wrong_size or self.added or self.suspect or self.damaged)

    @property
    def bad(self) -> set[str]:
        """The files that may not be noted as right."""
        return {*self.damaged, *self.missing, *self.wrong_size, *self.suspect}

    def forget(self, mended: Collection[str]) -> None:
        """These files were mended after they were read: what was found in them is over."""
        self.missing = [path for path in self.missing if path not in mended]
        self.wrong_size = [path for path in self.wrong_size if path not in mended]
        self.suspect = [path for path in self.suspect if path not in mended]
        self.damaged = {p: numbers for p, numbers in self.damaged.items() if p not in mended}

    def sentences(self, chunk_bytes: int) -> list[str]:
        """One line a file, as a person wants it."""
        lines = [f"{path}: the file is missing" for path in self.missing]
        lines += [f"{path}: the size is not the manifest's" for path in self.wrong_size]
        lines += [f"{path}: not part of the model, was added" for path in self.added]
        unproven = set(self.unproven)
        lines += [
            f"{path}: held wrong bytes when it was last read, or was not read yet"
            if path in unproven
            else f"{path}: was written to after it was verified"
            for path in self.suspect
        ]
        for path, numbers in self.damaged.items():
            places = ", ".join(str(number * chunk_bytes) for number in numbers[:5])
            more = " and more" if len(numbers) > 5 else ""
            lines.append(
                f"{path}: {len(numbers)} damaged piece(s) of {chunk_bytes} bytes"
                f" at byte {places}{more}"
            )
        return lines

    def as_dict(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "missing": self.missing,
            "wrong_size": self.wrong_size,
            "added": self.added,
            "suspect": self.suspect,
            "unproven": self.unproven,
            "damaged": self.damaged,
            "read_bytes": self.read_bytes,
        }


def glance(placed: Placed) -> Findings:
    """Names, sizes, times and the manifest's own hash; reads no weights."""
    found = Findings()
    stamps = read_stamps(placed.directory)
    known = {entry.path for entry in placed.manifest.files}
    for entry in placed.manifest.files:
        path = placed.directory / entry.path
        try:
            info = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            found.missing.append(entry.path)
            continue
        if not stat.S_ISREG(info.st_mode) or info.st_size != entry.size_bytes:
            found.wrong_size.append(entry.path)
        elif stamps.get(entry.path) != stamp_of(path):
            found.suspect.append(entry.path)
    found.unproven = [path for path in found.suspect if path not in stamps]
    found.added = sorted(_plain_names(placed.directory) - known)
    return found


def _plain_names(directory: Path) -> set[str]:
    """Every file below, and every directory that holds none, relative."""
    names: set[str] = set()
    for here, directories, files in os.walk(directory):
        if Path(here) == directory and META_DIR in directories:
            directories.remove(META_DIR)
        prefix = Path(here).relative_to(directory)
        names.update((prefix / name).as_posix() for name in files)
        names.update(
            (prefix / name).as_posix()
            for name in directories
            if (Path(here) / name).is_symlink() or not any((Path(here) / name).iterdir())
        )
    return names


def read_everything(
    placed: Placed, threads: int, progress: Callable[[int], None] = lambda _count: None
) -> Findings:
    """Hash every chunk from the disk, in parallel, past the page cache.

    What was only touched is no finding when its bytes are right, but what is written to while it
    is read is one. `progress` is told the bytes of each chunk as it is done.
    """
    noted = read_stamps(placed.directory)
    found = glance(placed)
    found.noted = noted
    found.suspect, found.unproven = [], []
    found.stamps = _stamps(placed)
    absent = set(found.missing)
    names = [entry.path for entry in placed.manifest.files]
    wanted = [c for c in placed.manifest.chunks() if names[c.file_index] not in absent]
    reader = _Reader(placed, names)
    lock = threading.Lock()

    def one(chunk: Chunk) -> None:
        right = reader.is_right(chunk)
        with lock:
            found.read_bytes += chunk.length
            if not right:
                number = chunk.offset // placed.manifest.chunk_bytes
                found.damaged.setdefault(names[chunk.file_index], []).append(number)
        progress(chunk.length)

    try:
        for _ in in_threads(threads, one, wanted):
            pass
    finally:
        reader.close()
    for numbers in found.damaged.values():
        numbers.sort()
    after = _stamps(placed)
    found.suspect = [path for path, stamp in found.stamps.items() if after.get(path) != stamp]
    return found


def _stamps(placed: Placed) -> dict[str, Stamp]:
    stamps = {}
    for entry in placed.manifest.files:
        with suppress(OSError):
            stamps[entry.path] = stamp_of(placed.directory / entry.path)
    return stamps


class _Reader:
    """Reads chunks with O_DIRECT: from the disk itself, neither filling nor emptying the cache.

    Where a file system refuses that (EINVAL), pages that were not in memory before are given back
    after the reading, and those that were stay: a serving process may live on them.
    """

    def __init__(self, placed: Placed, names: list[str]) -> None:
        self._placed = placed
        self._names = names
        self._local = threading.local()
        self._fds: dict[tuple[int, bool], int] = {}
        self._lock = threading.Lock()

    def is_right(self, chunk: Chunk) -> bool:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = mmap.mmap(-1, self._placed.manifest.chunk_bytes)
        buffer: mmap.mmap = self._local.buffer
        try:
            count = self._read(chunk, buffer)
        except OSError as exc:
            if exc.errno in {errno.EIO, errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENOTDIR}:
                return False
            raise
        if count < chunk.length:
            return False
        with memoryview(buffer) as view, view[: chunk.length] as part:
            return hashlib.sha256(part).hexdigest() == chunk.sha256

    def _read(self, chunk: Chunk, buffer: mmap.mmap) -> int:
        direct = getattr(os, "O_DIRECT", 0)
        try:
            handle = self._fd(chunk.file_index, direct)
            return _fill(handle, buffer, chunk)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
        handle = self._fd(chunk.file_index, 0)
        return _fill_politely(handle, buffer, chunk)

    def _fd(self, index: int, extra: int) -> int:
        with self._lock:
            handle = self._fds.get((index, bool(extra)))
            if handle is None:
                path = self._placed.directory / self._names[index]
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | extra)
                self._fds[(index, bool(extra))] = handle
            return handle

    def close(self) -> None:
        for handle in self._fds.values():
            os.close(handle)


def _fill(handle: int, buffer: mmap.mmap, chunk: Chunk) -> int:
    count = 0
    with memoryview(buffer) as view:
        while count < chunk.length:
            with view[count:] as rest:
                got = os.preadv(handle, [rest], chunk.offset + count)
            count += got
            if got == 0 or count % 4096:  # the end of the file
                break
    return count


def _fill_politely(handle: int, buffer: mmap.mmap, chunk: Chunk) -> int:
    cached = False
    with memoryview(buffer) as view, view[:1] as first, suppress(OSError):
        cached = os.preadv(handle, [first], chunk.offset, _RWF_NOWAIT) == 1
    count = _fill(handle, buffer, chunk)
    if not cached:
        os.posix_fadvise(handle, chunk.offset, chunk.length, os.POSIX_FADV_DONTNEED)
    return count
