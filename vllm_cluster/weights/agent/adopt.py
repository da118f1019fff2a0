"""Place a model from a directory of this host: a mount, a download, a cache, a pushed copy.

One pass over the bytes makes the file hashes, the chunk hashes and, when the directory is on
another file system, the copy.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.weights.agent.check import glance
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import (
    Layout,
    Placed,
    adoption_key,
    check_space,
    key_of,
    remove_tree,
    sync_dir,
    written_bytes,
)
from vllm_cluster.weights.agent.part import threads
from vllm_cluster.weights.agent.pool import in_threads
from vllm_cluster.weights.agent.publish import point, prune, publish, write_stamps
from vllm_cluster.weights.agent.scan import SourceFile, find_model_dir, scan
from vllm_cluster.weights.agent.take import Taker
from vllm_cluster.weights.agent.tree import Tree
from vllm_cluster.weights.manifest import (
    MANIFEST_SUMMARY_CHARS,
    FileEntry,
    Manifest,
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
    identity: str | None = None


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
    files = _listed(source, wish)
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

    over = threading.Event()

    def count(length: int) -> None:
        nonlocal done
        if over.is_set():
            raise WeightsError("given up, because another file failed")
        with lock:
            done += length
            progress(done, total)

    def one(file: SourceFile) -> FileEntry:
        taker = Taker(file, staging / file.path, chunk_bytes, mark_bytes, count)
        entry = taker.copy() if mode == "copy" else taker.link()
        _check_sha256(entry, wish.expected, source)
        return entry

    try:
        entries = list(in_threads(threads(), one, files))
    finally:
        over.set()
    if scan(source) != files:
        raise WeightsError("the directory changed while it was read; run again", file=str(source))
    manifest = make_manifest(wish.model, wish.revision, chunk_bytes, entries)
    if wish.identity is not None and wish.identity != manifest.identity:
        remove_tree(staging)
        raise WeightsError(
            f"is {manifest.identity[:MANIFEST_SUMMARY_CHARS]}, not the cluster's"
            f" {wish.identity[:MANIFEST_SUMMARY_CHARS]}; it was not placed",
            file=str(wish.source),
        )
    tree = Tree(manifest, staging, writable=False)
    _clear_the_way(layout, key_of(manifest))
    target = publish(layout, tree)
    tree.close()
    if wish.mode == "move":
        _let_go(wish.source, target, manifest)
    point(layout, wish.model, wish.revision, key_of(manifest))
    prune(layout, key_of(manifest), wish.keep)
    return Placed(key_of(manifest), target, manifest)


def _let_go(source: Path, target: Path, manifest: Manifest) -> None:
    """Take the download or push away. A link less changes a file's ctime: it is noted again."""
    remove_tree(source)
    write_stamps(target, manifest)


def _clear_the_way(layout: Layout, key: str) -> None:
    """A copy of this very model that is not whole any more gives way to the new one."""
    target = layout.placed_dir(key)
    try:
        placed = layout.placed(key)
        whole = placed is None or glance(placed).ok
    except WeightsError:
        whole = False
    if whole:
        return
    doomed = layout.staging / f"{key}.removed"
    remove_tree(doomed)
    target.rename(doomed)
    sync_dir(layout.store)
    remove_tree(doomed)


def _mode(layout: Layout, files: list[SourceFile], mode: str) -> str:
    same = {file.real.stat().st_dev for file in files} == {layout.staging.stat().st_dev}
    same = same and _can_link(layout, files[0])
    if mode == "auto":
        return "link" if same else "copy"
    if mode == "link" and not same:
        raise WeightsError(
            f"{files[0].real} is on another file system than {layout.root}: no links"
        )
    return "link" if mode == "move" and same else "copy" if mode == "move" else mode


def _can_link(layout: Layout, file: SourceFile) -> bool:
    """Not between two mounts of one file system, whatever their device numbers say (link(2))."""
    trial = layout.staging / f".link-{os.getpid()}"
    try:
        os.link(file.real, trial)
    except OSError:
        return False
    trial.unlink()
    return True


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


def _listed(source: Path, wish: Adoption) -> list[SourceFile]:
    """The files to take. Raises WeightsError when they are not the expected ones."""
    files = scan(source)
    if wish.mode == "move" and wish.expected is not None:
        # A download or push of ours that was interrupted may have left what is not asked for now.
        for file in files:
            if file.path not in wish.expected:
                (source / file.path).unlink()
        files = [file for file in files if file.path in wish.expected]
    _compare(files, wish.expected)
    return files


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
