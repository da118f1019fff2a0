"""Take one file over into staging: linked or copied, hashed on the way, going on where it was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vllm_cluster.weights.agent.errors import WeightsError, from_os_error
from vllm_cluster.weights.agent.scan import SourceFile
from vllm_cluster.weights.agent.tree import BLOCK_BYTES
from vllm_cluster.weights.manifest import FileEntry


class Taker:
    """Takes one file over, hashing it on the way. Goes on from an interrupted copy."""

    def __init__(
        self,
        file: SourceFile,
        target: Path,
        chunk_bytes: int,
        mark_bytes: int,
        count: Callable[[int], None],
    ) -> None:
        self._file = file
        self._target = target
        self._part = target.with_name(target.name + ".part")
        self._mark = target.with_name(target.name + ".part.mark")
        self._chunk_bytes = chunk_bytes
        self._mark_bytes = mark_bytes
        self._count = count
        self._whole = hashlib.sha256()
        self._piece = hashlib.sha256()
        self._piece_bytes = 0
        self._pieces: list[str] = []
        self._bytes = 0
        target.parent.mkdir(parents=True, exist_ok=True)

    def link(self) -> FileEntry:
        with suppress(FileNotFoundError):
            self._target.unlink()
        try:
            os.link(self._file.real, self._target)
            with self._target.open("rb", buffering=0) as stream:
                self._read(stream.fileno(), None, 0)
        except OSError as exc:
            raise from_os_error(exc, file=self._file.path) from exc
        return self._entry()

    def copy(self) -> FileEntry:
        try:
            if self._is_copied():
                with self._target.open("rb", buffering=0) as stream:
                    self._read(stream.fileno(), None, 0)
                return self._entry()
            with (
                self._file.real.open("rb", buffering=0) as stream,
                self._part.open("r+b" if self._part.exists() else "w+b", buffering=0) as copy,
            ):
                position = self._resume(copy.fileno())
                self._read(stream.fileno(), copy.fileno(), position)
                os.fsync(copy.fileno())
            os.utime(self._part, ns=(self._file.mtime_ns, self._file.mtime_ns))
            self._part.rename(self._target)
            with suppress(FileNotFoundError):
                self._mark.unlink()
        except OSError as exc:
            raise from_os_error(exc, file=self._file.path) from exc
        return self._entry()

    def _is_copied(self) -> bool:
        """An earlier run synced the file before it gave it its name and the source's time."""
        try:
            info = self._target.stat()
        except FileNotFoundError:
            return False
        same = (info.st_size, info.st_mtime_ns) == (self._file.size_bytes, self._file.mtime_ns)
        return same and info.st_nlink == 1

    def _resume(self, copy: int) -> int:
        """Hash what is known to be on the disk; return how much that is.

        The mark is written after fdatasync: what lies beyond it may be zeros after a power cut.
        It names the source's time, so that another content starts anew.
        """
        position = 0
        with suppress(OSError, ValueError):
            marked, mtime_ns = (int(word) for word in self._mark.read_text().split())
            if mtime_ns == self._file.mtime_ns:
                position = min(marked, os.fstat(copy).st_size)
        os.ftruncate(copy, position)
        self._read(copy, None, 0)
        os.lseek(copy, position, os.SEEK_SET)
        return position

    def _read(self, source: int, copy: int | None, position: int) -> None:
        buffer = bytearray(BLOCK_BYTES)
        view = memoryview(buffer)
        marked = position
        while True:
            room = min(BLOCK_BYTES, self._chunk_bytes - self._piece_bytes)
            count = os.preadv(source, [view[:room]], position)
            if count == 0:
                return
            self._hash(view[:count])
            if copy is not None:
                _write_all(copy, view[:count], position)
            position += count
            self._count(count)
            if copy is not None and position - marked >= self._mark_bytes:
                os.fdatasync(copy)
                self._mark.write_text(f"{position} {self._file.mtime_ns}")
                marked = position

    def _hash(self, data: memoryview) -> None:
        self._whole.update(data)
        self._piece.update(data)
        self._piece_bytes += len(data)
        self._bytes += len(data)
        if self._piece_bytes == self._chunk_bytes:
            self._end_piece()

    def _end_piece(self) -> None:
        self._pieces.append(self._piece.hexdigest())
        self._piece = hashlib.sha256()
        self._piece_bytes = 0

    def _entry(self) -> FileEntry:
        if self._piece_bytes:
            self._end_piece()
        whole = self._whole.hexdigest()
        file = self._file
        if self._bytes != file.size_bytes:
            raise WeightsError("changed its size while it was read; run again", file=file.path)
        return FileEntry(file.path, file.size_bytes, whole, tuple(self._pieces))


def _write_all(handle: int, data: memoryview, position: int) -> None:
    while data:
        done = os.pwrite(handle, data, position)
        position += done
        data = data[done:]
