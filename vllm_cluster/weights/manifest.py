"""What a model is: every file with its size, SHA-256 and chunk hashes, and one identity for all.

Pure and standard-library only, because the hosts run it too. The identity is the SHA-256 of the
canonical JSON text; one byte more or less in any file, or another name, makes another model.

Two hashes for a reason. The file's SHA-256 is what a hub publishes, so it is checked in the pass
that makes the chunk hashes; from then on the chunk hashes, bound to it by the identity, say the
same, can be checked in any order and by many cores at once, and name the 8 MiB that are bad.
SHA-256 for both: with the SHA instructions of every server processor since 2018 it runs at 1.2 to
2 GB/s a core in hashlib, three times blake2b's portable code there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

FORMAT = 1
META_DIR = ".vllm-cluster"  # ours inside a placed model; never a model's own file
MIN_CHUNK_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 8 * 1024 * 1024
_MAX_MANIFEST_BYTES = 256 * 1024 * 1024
_MAX_NAME_BYTES = 255
MANIFEST_SUMMARY_CHARS = 16  # of an identity, where people read it and in directory names
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class ManifestError(ValueError):
    """A manifest that must not be used, with the reason."""


@dataclass(frozen=True)
class FileEntry:
    """One file: path relative to the model's directory, size in bytes, hashes in hex."""

    path: str
    size_bytes: int
    sha256: str
    chunks: tuple[str, ...]


@dataclass(frozen=True)
class Chunk:
    """The unit that is fetched and verified: `length` bytes of one file, at most chunk_bytes."""

    index: int
    file_index: int
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A model at a revision. Files are sorted by path."""

    model: str
    revision: str
    chunk_bytes: int
    files: tuple[FileEntry, ...]

    @cached_property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    @cached_property
    def encoded(self) -> bytes:
        """Canonical JSON: the bytes on disk, on the wire and under the identity."""
        files = [
            {"path": f.path, "size": f.size_bytes, "sha256": f.sha256, "chunks": list(f.chunks)}
            for f in self.files
        ]
        value = {
            "format": FORMAT,
            "model": self.model,
            "revision": self.revision,
            "chunk_bytes": self.chunk_bytes,
            "files": files,
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk in the order in which it travels."""
        index = 0
        for file_index, entry in enumerate(self.files):
            for number, digest in enumerate(entry.chunks):
                offset = number * self.chunk_bytes
                length = min(self.chunk_bytes, entry.size_bytes - offset)
                yield Chunk(index, file_index, offset, length, digest)
                index += 1


def chunk_bytes_for(total_bytes: int) -> int:
    """The chunk size of a model: 8 MiB from 8 GiB up, at most 1/1024 of a smaller one.

    A chain pays its filling (a chunk a host) and an interruption pays what was in flight (a few
    chunks), so a chunk has to stay small beside the model; below 256 KiB the requests cost more.
    """
    wanted = MIN_CHUNK_BYTES
    while wanted < MAX_CHUNK_BYTES and 2 * wanted * 1024 <= total_bytes:
        wanted *= 2
    return wanted


def make_manifest(
    model: str, revision: str, chunk_bytes: int, files: Iterable[FileEntry]
) -> Manifest:
    """Sort, check and bind the files. Raises ManifestError."""
    manifest = Manifest(
        model, revision, chunk_bytes, tuple(sorted(files, key=lambda entry: entry.path))
    )
    _check(manifest)
    return manifest


def parse_manifest(data: bytes, identity: str | None = None) -> Manifest:
    """Read a manifest that came from a disk or a peer; refuse anything not exactly as we write it.

    With `identity`, refuse another model's. Raises ManifestError.
    """
    if identity is not None and hashlib.sha256(data).hexdigest() != identity:
        raise ManifestError(
            f"the manifest's hash is {hashlib.sha256(data).hexdigest()}, wanted {identity}"
        )
    if len(data) > _MAX_MANIFEST_BYTES:
        raise ManifestError(f"the manifest has {len(data)} bytes, more than any model needs")
    try:
        value = json.loads(data)
        if value["format"] != FORMAT:
            raise ManifestError(f"manifest format {value['format']!r}, this code reads {FORMAT}")
        files = tuple(
            FileEntry(f["path"], f["size"], f["sha256"], tuple(f["chunks"])) for f in value["files"]
        )
        manifest = Manifest(value["model"], value["revision"], value["chunk_bytes"], files)
        _check(manifest)
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise ManifestError(f"not a manifest: {type(exc).__name__}: {exc}") from exc
    if manifest.encoded != data:
        raise ManifestError("the manifest is not in canonical form, its identity would not be one")
    return manifest


def slug_of(model: str) -> str:
    """A model's directory name: `org/name` becomes `org--name`. Raises ManifestError."""
    parts = model.split("/")
    if len(parts) > 2 or "--" in model or not all(_NAME_PART.fullmatch(part) for part in parts):
        raise ManifestError(
            f"model name {model!r}: wanted NAME or ORG/NAME of letters, digits, '.', '_', '-'"
        )
    return "--".join(parts)


def check_revision(revision: str) -> str:
    """A revision is a directory name too. Raises ManifestError."""
    if not _NAME_PART.fullmatch(revision) or len(revision) > 128:
        raise ManifestError(
            f"revision {revision!r}: wanted a commit or a label of letters, digits, '.', '_', '-'"
        )
    return revision


def check_path(path: str) -> str:
    """Accept a relative path that stays below the directory it is joined to, as it is written.

    Raises ManifestError for absolute paths, `..`, empty or `.` components, control characters,
    backslashes, names no file system takes, and our own metadata directory.
    """
    parts = path.split("/")
    try:
        too_long = any(len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    except UnicodeEncodeError:
        raise ManifestError(f"path {path!r} is not UTF-8") from None
    if _CONTROL.search(path) or too_long or any(part in {"", ".", ".."} for part in parts):
        raise ManifestError(f"path {path!r} is not a plain relative path")
    if parts[0] == META_DIR:
        raise ManifestError(f"path {path!r} is reserved")
    return path


def _check(manifest: Manifest) -> None:
    slug_of(manifest.model)
    check_revision(manifest.revision)
    size = manifest.chunk_bytes
    if not isinstance(size, int) or not MIN_CHUNK_BYTES <= size <= MAX_CHUNK_BYTES:
        raise ManifestError(f"chunk size {size!r} is out of range")
    if size & (size - 1):
        raise ManifestError(f"chunk size {size} is not a power of two")
    if not manifest.files:
        raise ManifestError("a model without files")
    for entry in manifest.files:
        _check_entry(entry, size)
    paths = [entry.path for entry in manifest.files]
    if paths != sorted(set(paths)):
        raise ManifestError("files are not sorted, or named twice")
    known = set(paths)
    for path in paths:
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if "/".join(parents[:depth]) in known:
                raise ManifestError(f"path {path!r} runs through a file")


def _check_entry(entry: FileEntry, chunk_bytes: int) -> None:
    check_path(entry.path)
    if type(entry.size_bytes) is not int or entry.size_bytes < 0:
        raise ManifestError(f"{entry.path}: size {entry.size_bytes!r}")
    if len(entry.chunks) != -(-entry.size_bytes // chunk_bytes):
        raise ManifestError(
            f"{entry.path}: {len(entry.chunks)} chunks for {entry.size_bytes} bytes"
        )
    for digest in (entry.sha256, *entry.chunks):
        if not _SHA256.fullmatch(digest):
            raise ManifestError(f"{entry.path}: {digest!r} is not a SHA-256")
