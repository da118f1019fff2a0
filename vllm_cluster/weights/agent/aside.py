"""A model on a file system that hosts only read: placed by others, known by notes of our own.

NOTES/<model>@<revision>/manifest.json    what it is; its SHA-256 is the identity
NOTES/<model>@<revision>/stamps.json      how the files looked when they were read

One host reads everything once, the others are given its notes and compare. Nothing is written
where the model lies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent.check import Findings
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import MANIFEST_FILE, STAMPS_FILE, write_file, write_json
from vllm_cluster.weights.agent.pool import in_threads
from vllm_cluster.weights.agent.scan import SourceFile, scan
from vllm_cluster.weights.manifest import (
    FileEntry,
    Manifest,
    ManifestError,
    check_revision,
    chunk_bytes_for,
    make_manifest,
    parse_manifest,
    slug_of,
)

Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Aside:
    """Where the model lies and where the notes about it are."""

    directory: Path
    notes: Path
    model: str
    revision: str

    @property
    def folder(self) -> Path:
        return self.notes / f"{slug_of(self.model)}@{check_revision(self.revision)}"

    def known(self) -> tuple[Manifest, Stamps]:
        """The notes. Raises WeightsError when there are none, or when they are not ours."""
        try:
            manifest = parse_manifest((self.folder / MANIFEST_FILE).read_bytes())
            stamps = json.loads((self.folder / STAMPS_FILE).read_bytes())
            return manifest, {path: (int(s[0]), int(s[1])) for path, s in stamps.items()}
        except FileNotFoundError:
            reason = f"{self.directory} was not read yet on this host; deploy again"
            raise WeightsError(reason) from None
        except (ManifestError, ValueError, LookupError, TypeError, AttributeError) as exc:
            raise WeightsError(str(exc), file=str(self.folder)) from exc

    def note(self, manifest: Manifest, stamps: Stamps) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / MANIFEST_FILE, manifest.encoded)
        write_json(self.folder / STAMPS_FILE, stamps)

    def withdraw(self, sums: Mapping[str, str], identity: str) -> None:
        """Forget how the files looked that hold other bytes than noted, by a reading's `sums`: no
        name, size or time tells of them, and no unit may start with them."""
        try:
            manifest, stamps = self.known()
        except WeightsError:
            return  # nothing to go by: no unit starts as it is
        if manifest.identity == identity:
            right = {e.path for e in manifest.files if sums.get(e.path) == e.sha256}
            kept = {path: stamp for path, stamp in stamps.items() if path in right}
            write_json(self.folder / STAMPS_FILE, kept)


def glance_aside(aside: Aside, manifest: Manifest, stamps: Stamps) -> Findings:
    """Names, sizes and times of writing against the notes; reads no weights."""
    found = Findings()
    there = {file.path: file for file in scan(aside.directory)}
    for entry in manifest.files:
        file = there.pop(entry.path, None)
        if file is None:
            found.missing.append(entry.path)
        elif file.size_bytes != entry.size_bytes:
            found.wrong_size.append(entry.path)
        elif stamps.get(entry.path) != (file.size_bytes, file.mtime_ns):
            found.suspect.append(entry.path)
    found.unproven = [path for path in found.suspect if path not in stamps]
    found.added = sorted(there)
    return found


def read_aside(
    aside: Aside, threads: int, progress: Callable[[int, int], None]
) -> tuple[Manifest, Stamps]:
    """Read every file once. Raises WeightsError when one changes meanwhile."""
    files = scan(aside.directory)
    total = sum(file.size_bytes for file in files)
    chunk_bytes = chunk_bytes_for(total)
    done = 0

    def one(file: SourceFile) -> FileEntry:
        return hash_file(file, chunk_bytes)

    entries = []
    for entry in in_threads(threads, one, files):
        entries.append(entry)
        done += entry.size_bytes
        progress(done, total)
    if scan(aside.directory) != files:
        raise WeightsError("changed while it was read; run again", file=str(aside.directory))
    manifest = make_manifest(aside.model, aside.revision, chunk_bytes, entries)
    return manifest, {file.path: (file.size_bytes, file.mtime_ns) for file in files}


def take_notes(aside: Aside, text: str, identity: str | None) -> tuple[Manifest, Findings]:
    """Accept another host's notes when this host sees the very files. Raises WeightsError."""
    try:
        value: dict[str, Any] = json.loads(text)
        manifest = parse_manifest(value["manifest"].encode(), identity)
        stamps = {path: (int(s[0]), int(s[1])) for path, s in value["stamps"].items()}
    except (ManifestError, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise WeightsError(f"the notes cannot be read: {exc}") from exc
    found = glance_aside(aside, manifest, stamps)
    if found.ok:
        aside.note(manifest, stamps)
    return manifest, found


def hash_file(file: SourceFile, chunk_bytes: int) -> FileEntry:
    """Its SHA-256 and those of its chunks, read once. Raises OSError."""
    whole = hashlib.sha256()
    chunks: list[str] = []
    size_bytes = 0
    with file.real.open("rb") as stream:
        while chunk := stream.read(chunk_bytes):
            whole.update(chunk)
            chunks.append(hashlib.sha256(chunk).hexdigest())
            size_bytes += len(chunk)
    return FileEntry(file.path, size_bytes, whole.hexdigest(), tuple(chunks))
