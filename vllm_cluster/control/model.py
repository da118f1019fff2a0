"""The manifest of the model on this machine, hashed once and remembered."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from vllm_cluster.control import written
from vllm_cluster.weights.agent.aside import hash_file
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.scan import SourceFile, scan
from vllm_cluster.weights.manifest import (
    FileEntry,
    Manifest,
    chunk_bytes_for,
    make_manifest,
    parse_manifest,
)


def manifest_of(directory: Path, model: str, revision: str | None = None) -> Manifest:
    """The manifest of the model in `directory`, files only, hidden ones left out.

    Without a revision it is named after its content, so that another content has another path on
    the hosts. Reading 140 GB takes minutes, so the result is kept in the user's cache and holds
    while names, sizes, times and inodes are the same. Raises ValueError where `directory` holds no
    model, OSError where it cannot be read.
    """
    try:
        files = scan(directory)
    except WeightsError as error:
        raise ValueError(f"{error.file}: {error.reason}") from None
    if not any(file.path == "config.json" for file in files):
        raise ValueError(f"{directory} has no config.json")
    stamp = [(f.path, f.size_bytes, f.mtime_ns, f.inode) for f in files]
    key = hashlib.sha256(
        json.dumps([str(directory.resolve()), model, revision, stamp]).encode()
    ).hexdigest()
    kept = _cache() / f"{key}.json"
    if kept.exists():
        return parse_manifest(kept.read_bytes())
    manifest = _hash(files, model, revision)
    with suppress(OSError):  # a cache that cannot be written costs the next run the reading again
        _keep(kept, manifest.encoded)
    return manifest


def remembered(identity: str) -> Manifest | None:
    """The manifest of a model that hosts have, when a run of this machine has brought it here."""
    try:
        return parse_manifest((_cache() / f"{identity}.json").read_bytes(), identity)
    except (OSError, ValueError):
        return None


def remember(data: bytes, identity: str) -> None:
    """Keep a host's manifest for `remembered`. Raises ValueError when it is another's."""
    _keep(_cache() / f"{identity}.json", parse_manifest(data, identity).encoded)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm-cluster" / "manifests"


def _hash(files: Sequence[SourceFile], model: str, revision: str | None) -> Manifest:
    total_bytes = sum(file.size_bytes for file in files)
    chunk_bytes = chunk_bytes_for(total_bytes)
    done_bytes = 0
    entries: list[FileEntry] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for entry in pool.map(partial(hash_file, chunk_bytes=chunk_bytes), files):
            entries.append(entry)
            done_bytes += entry.size_bytes
            _progress(done_bytes, total_bytes)
    return make_manifest(model, revision or _content_name(entries), chunk_bytes, entries)


def _content_name(entries: Sequence[FileEntry]) -> str:
    content = sorted((entry.path, entry.size_bytes, entry.sha256) for entry in entries)
    return f"local-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"


def _progress(done_bytes: int, total_bytes: int) -> None:
    if total_bytes > 2**30 and sys.stderr.isatty():
        end = "\n" if done_bytes == total_bytes else "\r"
        done, total = done_bytes / 2**30, total_bytes / 2**30
        print(f"hashing the model: {done:.1f} of {total:.1f} GiB", end=end, file=sys.stderr)


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written.replace(path, content)
