"""A manifest's files in a directory, read and written by chunk, and which chunks are right."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from vllm_cluster.weights.agent.errors import from_os_error
from vllm_cluster.weights.agent.pool import in_threads
from vllm_cluster.weights.manifest import Chunk, Manifest

BLOCK_BYTES = 256 * 1024  # read, hash and write in pieces that stay in a core's cache


class Tree:
    """Open files of one copy, and the set of chunks known to be right.

    Thread-safe. A chunk enters the set only after its hash was seen to match what this process
    read from the file or received for it.
    """

    def __init__(self, manifest: Manifest, directory: Path, *, writable: bool) -> None:
        self.manifest = manifest
        self.directory = directory
        self.chunks: list[Chunk] = list(manifest.chunks())
        self._writable = writable
        self._fds: dict[int, int] = {}
        self._left = [len(entry.chunks) for entry in manifest.files]
        self._have = bytearray(len(self.chunks))
        self._count = 0
        self._bytes = 0
        self._changed = threading.Condition()

    def path(self, file_index: int) -> Path:
        return self.directory / self.manifest.files[file_index].path

    def file_of(self, chunk: Chunk) -> str:
        return self.manifest.files[chunk.file_index].path

    # -- files ---------------------------------------------------------------------------------

    def create(self, only: Collection[str] | None = None) -> None:
        """Make every file (or those of `only`) at its full size with its space reserved.

        Raises WeightsError naming the file when the disk cannot hold it: the reservation, not the
        middle of the copy, is where a full disk shows.
        """
        for index, entry in enumerate(self.manifest.files):
            if only is not None and entry.path not in only:
                continue
            path = self.path(index)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = self._open(index, os.O_RDWR | os.O_CREAT)
                if os.fstat(handle).st_size > entry.size_bytes:
                    os.ftruncate(handle, entry.size_bytes)
                if entry.size_bytes:
                    os.posix_fallocate(handle, 0, entry.size_bytes)
            except OSError as exc:
                raise from_os_error(exc, file=entry.path) from exc

    def fd(self, file_index: int) -> int:
        with self._changed:
            handle = self._fds.get(file_index)
        if handle is None:
            flags = os.O_RDWR if self._writable else os.O_RDONLY
            handle = self._open(file_index, flags)
        return handle

    def _open(self, index: int, flags: int) -> int:
        handle = os.open(self.path(index), flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with self._changed:
            kept = self._fds.setdefault(index, handle)
        if kept != handle:
            os.close(handle)
        return kept

    def close(self) -> None:
        with self._changed:
            handles, self._fds = self._fds, {}
        for handle in handles.values():
            os.close(handle)

    def sync_file(self, file_index: int) -> None:
        """Raises WeightsError: an error of fsync means that earlier writes are lost."""
        try:
            os.fsync(self.fd(file_index))
        except OSError as exc:
            raise from_os_error(exc, file=self.manifest.files[file_index].path) from exc

    def sync(self) -> None:
        """Every file, then every directory, onto the disk."""
        for index in range(len(self.manifest.files)):
            self.sync_file(index)
        directories = {self.directory}
        for index in range(len(self.manifest.files)):
            parent = self.path(index).parent
            while parent != self.directory:
                directories.add(parent)
                parent = parent.parent
        for directory in directories:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    # -- chunks --------------------------------------------------------------------------------

    def write(self, chunk: Chunk, position: int, data: memoryview) -> None:
        """Put `data` at `position` within the chunk. Raises WeightsError."""
        try:
            while data:
                done = os.pwrite(self.fd(chunk.file_index), data, chunk.offset + position)
                position += done
                data = data[done:]
        except OSError as exc:
            raise from_os_error(exc, file=self.file_of(chunk)) from exc

    def is_right(self, chunk: Chunk) -> bool:
        """Read the chunk back and compare. A short or unreadable file is not right."""
        digest = hashlib.sha256()
        buffer = bytearray(BLOCK_BYTES)
        view = memoryview(buffer)
        position = 0
        try:
            while position < chunk.length:
                part = view[: min(BLOCK_BYTES, chunk.length - position)]
                count = os.preadv(self.fd(chunk.file_index), [part], chunk.offset + position)
                if count == 0:
                    return False
                digest.update(part[:count])
                position += count
        except OSError:
            return False
        return digest.hexdigest() == chunk.sha256

    def find_right(self, threads: int) -> None:
        """Enter every chunk that the files already hold: how an interrupted copy goes on.

        Nothing that was written down is believed, only the bytes. Holes are skipped unread.
        """
        candidates = list(self._with_data())
        found = in_threads(threads, self.is_right, candidates)
        for chunk, right in zip(candidates, found, strict=True):
            if right:
                self.add(chunk)

    def _with_data(self) -> Iterable[Chunk]:
        ranges: dict[int, list[tuple[int, int]]] = {}
        for chunk in self.chunks:
            known = ranges.setdefault(chunk.file_index, [])
            if not known:
                known.extend(_data_ranges(self.fd(chunk.file_index)))
            end = chunk.offset + chunk.length
            if any(start < end and stop > chunk.offset for start, stop in known):
                yield chunk

    # -- which are right -----------------------------------------------------------------------

    def add(self, chunk: Chunk) -> bool:
        """Say that the chunk is right, wake who waits. True when its file is complete by it."""
        with self._changed:
            if self._have[chunk.index]:
                return False
            self._have[chunk.index] = 1
            self._count += 1
            self._bytes += chunk.length
            self._left[chunk.file_index] -= 1
            self._changed.notify_all()
            return self._left[chunk.file_index] == 0

    def add_all(self) -> None:
        for chunk in self.chunks:
            self.add(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Take back: the chunk was found damaged."""
        with self._changed:
            if self._have[chunk.index]:
                self._have[chunk.index] = 0
                self._count -= 1
                self._bytes -= chunk.length
                self._left[chunk.file_index] += 1

    def has(self, index: int) -> bool:
        return bool(self._have[index])

    def wait_for(self, index: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._have[index]), timeout_s)

    def missing(self) -> list[int]:
        with self._changed:
            return [index for index, here in enumerate(self._have) if not here]

    @property
    def count(self) -> int:
        return self._count

    @property
    def have_bytes(self) -> int:
        return self._bytes

    @property
    def complete(self) -> bool:
        return self._count == len(self.chunks)


def _data_ranges(handle: int) -> list[tuple[int, int]]:
    """Where a sparse file has bytes; one range over all where the file system cannot say."""
    size = os.fstat(handle).st_size
    ranges: list[tuple[int, int]] = []
    position = 0
    try:
        while position < size:
            start = os.lseek(handle, position, os.SEEK_DATA)
            position = os.lseek(handle, start, os.SEEK_HOLE)
            ranges.append((start, position))
    except OSError:  # ENXIO: nothing but a hole from here on
        pass
    return ranges or [(0, 0)]
