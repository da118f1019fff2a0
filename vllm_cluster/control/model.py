"""The model on this machine: its manifest, hashed once and remembered."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from vllm_cluster.weights.manifest import (
    FileEntry,
    Manifest,
    chunk_bytes_for,
    make_manifest,
    parse_manifest,
)


def manifest_of(directory: Path, model: str) -> Manifest:
    """The manifest of the model in `directory`, files only, hidden ones left out.

    Reading 140 GB takes minutes, so the result is kept in the user's cache and holds while names,
    sizes, times and inodes are the same. Raises ValueError where `directory` holds no model,
    OSError where it cannot be read.
    """
    files = sorted(_files(directory))
    if not any(name == "config.json" for name, _ in files):
        raise ValueError(f"{directory} has no config.json")
    stamp = [(n, s.st_size, s.st_mtime_ns, s.st_ino) for n, p in files for s in [p.stat()]]
    key = hashlib.sha256(json.dumps([str(directory.resolve()), model, stamp]).encode()).hexdigest()
    kept = _cache() / f"{key}.json"
    if kept.exists():
        return parse_manifest(kept.read_bytes())
    manifest = _hash(files, model)
    _keep(kept, manifest.encoded)
    return manifest


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm-cluster" / "manifests"


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    for root, names, files in os.walk(directory, followlinks=True):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in files:
            path = Path(root, name)
            if not name.startswith("."):
                yield str(path.relative_to(directory)), path


def _hash(files: list[tuple[str, Path]], model: str) -> Manifest:
    total_bytes = sum(path.stat().st_size for _, path in files)
    chunk_bytes = chunk_bytes_for(total_bytes)
    done_bytes = 0
    entries: list[FileEntry] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for entry in pool.map(partial(_entry, chunk_bytes), *zip(*files, strict=True)):
            entries.append(entry)
            done_bytes += entry.size_bytes
            _progress(done_bytes, total_bytes)
    return make_manifest(model, "local", chunk_bytes, entries)


def _entry(chunk_bytes: int, name: str, path: Path) -> FileEntry:
    whole = hashlib.sha256()
    chunks: list[str] = []
    size_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(chunk_bytes):
            whole.update(chunk)
            chunks.append(hashlib.sha256(chunk).hexdigest())
            size_bytes += len(chunk)
    return FileEntry(name, size_bytes, whole.hexdigest(), tuple(chunks))


def _progress(done_bytes: int, total_bytes: int) -> None:
    if total_bytes > 2**30 and sys.stderr.isatty():
        end = "\n" if done_bytes == total_bytes else "\r"
        done, total = done_bytes / 2**30, total_bytes / 2**30
        print(f"hashing the model: {done:.1f} of {total:.1f} GiB", end=end, file=sys.stderr)


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_bytes(content)
    new.replace(path)
