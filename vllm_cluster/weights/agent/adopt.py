"""Place a model from a directory of this host: a mount, a download, a cache, a pushed copy.

One pass over the bytes makes the file hashes, the chunk hashes and, when the directory is on
another file system, the copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.weights.agent.errors import WeightsError, from_os_error
from vllm_cluster.weights.agent.layout import Layout, Placed, check_space, key_of, written_bytes
from vllm_cluster.weights.agent.part import threads
from vllm_cluster.weights.agent.publish import point, prune, publish
from vllm_cluster.weights.agent.scan import SourceFile, find_model_dir, scan
from vllm_cluster.weights.agent.tree import BLOCK_BYTES, Tree
from vllm_cluster.weights.manifest import (
    FileEntry,
    ManifestError,
    check_revision,
    chunk_bytes_for,
    make_manifest,
    slug_of,
)

_MIN_MARK_BYTES = 1 << 20
_MAX_MARK_BYTES = 256 << 20

Expected = dict[str, tuple[int, "str | None"]]


@dataclass(frozen=True)
class Adoption:
    """What to adopt. mode: "copy"; "link" (hard links, the same file system: nothing is written);
    "move" (a download of our own, gone afterwards); "auto": link where possible, else copy.

    expected: size and SHA-256 (None: not published) by path, as the source's hub states them.
    """

    source: Path
    model: str
    revision: str
    mode: str = "auto"
    expected: Expected | None = None
    reserve_bytes: int = 1 << 30
    mountpoint: str | None = None
    keep: int = 2


def read_expected(path: Path) -> Expected:
    """{"files": [{"path", "size", "sha256"}]} as the download wrote it. Raises WeightsError."""
    try:
        files = json.loads(path.read_bytes())["files"]
        return {item["path"]: (int(item["size"]), item.get("sha256")) for item in files}
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise WeightsError(
            f"the list of expected files cannot be read: {exc}", file=str(path)
        ) from exc


def adopt(layout: Layout, wish: Adoption, progress: Callable[[int, int], None]) -> Placed:
    """Place the model; progress hears (bytes done, bytes in all). Raises WeightsError.

    The caller holds the lock of `adoption_key`.
    """
    try:
        slug_of(wish.model)
        check_revision(wish.revision)
    except ManifestError as exc:
        raise WeightsError(str(exc)) from exc
    source = find_model_dir(wish.source.absolute(), wish.revision)
    files = scan(source)
    _compare(files, wish.expected)
    mode = _mode(layout, files, wish.mode)
    staging = layout.staging / adoption_key(wish.model, wish.revision)
    total = sum(file.size_bytes for file in files)
    here = written_bytes(staging)
    check_space(
        layout,
        max(0, total - here) if mode == "copy" else 0,
        reserve_bytes=wish.reserve_bytes,
        mountpoint=wish.mountpoint,
        file=str(wish.source),
    )
    staging.mkdir(parents=True, exist_ok=True)
    _forget_others(staging, files)
    chunk_bytes = chunk_bytes_for(total)
    mark_bytes = min(max(total // 1024, _MIN_MARK_BYTES), _MAX_MARK_BYTES)
    lock, done = threading.Lock(), 0

    def count(length: int) -> None:
        nonlocal done
        with lock:
            done += length
            progress(done, total)

    def one(file: SourceFile) -> FileEntry:
        taker = _Taker(file, staging / file.path, chunk_bytes, mark_bytes, count)
        entry = taker.copy() if mode == "copy" else taker.link()
        _check_sha256(entry, wish.expected, source)
        return entry

    with ThreadPoolExecutor(threads()) as pool:
        entries = list(pool.map(one, files))
    if scan(source) != files:
        raise WeightsError("the directory changed while it was read; run again", file=str(source))
    manifest = make_manifest(wish.model, wish.revision, chunk_bytes, entries)
    tree = Tree(manifest, staging, writable=False)
    target = publish(layout, tree)
    tree.close()
    if mode == "move" or wish.mode == "move":
        shutil.rmtree(wish.source)
    point(layout, wish.model, wish.revision, key_of(manifest))
    prune(layout, key_of(manifest), wish.keep)
    return Placed(key_of(manifest), target, manifest)


def adoption_key(model: str, revision: str) -> str:
    """The job's key before the identity is known. Raises ManifestError."""
    return f"{slug_of(model)}@{check_revision(revision)}.adopt"


def _mode(layout: Layout, files: list[SourceFile], mode: str) -> str:
    same = {file.real.stat().st_dev for file in files} == {layout.staging.stat().st_dev}
    if mode == "auto":
        return "link" if same else "copy"
    if mode == "link" and not same:
        raise WeightsError(
            f"{files[0].real} is on another file system than {layout.root}: no links"
        )
    return "link" if mode == "move" and same else "copy" if mode == "move" else mode


def _compare(files: list[SourceFile], expected: Expected | None) -> None:
    if expected is None:
        return
    sizes = {file.path: file.size_bytes for file in files}
    for path, (size, _) in sorted(expected.items()):
        if path not in sizes:
            raise WeightsError("the source lacks this file", file=path)
        if sizes[path] != size:
            raise WeightsError(f"has {sizes[path]} bytes, published with {size}", file=path)
    for path in sorted(set(sizes) - set(expected)):
        raise WeightsError("is not among the published files", file=path)


def _check_sha256(entry: FileEntry, expected: Expected | None, source: Path) -> None:
    wanted = expected[entry.path][1] if expected is not None else None
    if wanted is not None and wanted != entry.sha256:
        raise WeightsError(
            f"SHA-256 is {entry.sha256}, published as {wanted}: damaged in {source}",
            file=entry.path,
        )


def _forget_others(staging: Path, files: list[SourceFile]) -> None:
    """What an earlier, interrupted run of another content left."""
    known = {file.path for file in files}
    known |= {path + suffix for path in known for suffix in (".part", ".part.mark")}
    for path in list(staging.rglob("*")):
        if path.is_file() and path.relative_to(staging).as_posix() not in known:
            path.unlink()


class _Taker:
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
        size = (len(self._pieces) - 1) * self._chunk_bytes
        if file.size_bytes and not size < file.size_bytes <= size + self._chunk_bytes:
            raise WeightsError("changed its size while it was read; run again", file=file.path)
        return FileEntry(file.path, file.size_bytes, whole, tuple(self._pieces))


def _write_all(handle: int, data: memoryview, position: int) -> None:
    while data:
        done = os.pwrite(handle, data, position)
        position += done
        data = data[done:]
