"""Make a finished copy visible in one step, and take old ones away."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import (
    MANIFEST_FILE,
    STAMPS_FILE,
    Layout,
    key_of,
    lock_holder,
    remove_tree,
    sync_dir,
    write_file,
    write_json,
)
from vllm_cluster.weights.agent.tree import Tree
from vllm_cluster.weights.manifest import META_DIR, Manifest

Stamp = tuple[int, int, int]
_GIVEN_UP_S = 7 * 86400.0


def stamp_of(path: Path) -> Stamp:
    """Size, mtime and ctime (ns) of a plain file. The ctime no tool can set back."""
    info = path.lstat()
    return (info.st_size, info.st_mtime_ns, info.st_ctime_ns)


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """One process of this host at a time; the kernel gives it back when a process is killed."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_stamps(
    directory: Path,
    manifest: Manifest,
    leave_out: Iterable[str] = (),
    read: Mapping[str, Stamp] | None = None,
) -> None:
    """Note how the files look; the ones left out count as suspect until they are read.

    `read` is how they looked before somebody read them, so that what was written to meanwhile does
    not pass for what was read; the others look as they do now.
    """
    with alone_in(directory / META_DIR):
        _write_stamps(directory, manifest, leave_out, read or {})


def _write_stamps(
    directory: Path, manifest: Manifest, leave_out: Iterable[str], before: Mapping[str, Stamp]
) -> None:
    skipped = set(leave_out)
    stamps = {
        entry.path: before.get(entry.path) or stamp_of(directory / entry.path)
        for entry in manifest.files
        if entry.path not in skipped
    }
    write_json(directory / META_DIR / STAMPS_FILE, stamps)


def write_stamps_read(
    directory: Path,
    manifest: Manifest,
    *,
    bad: Iterable[str],
    read: Mapping[str, Stamp],
    noted: Mapping[str, Stamp],
) -> set[str]:
    """Note what a reading found which took no job's lock. Returns what was mended meanwhile.

    `noted` are the stamps from before it. A file whose stamp is another by now, and which looks so,
    was verified later than we read it: what we read of it is no news, good or bad.
    """
    with alone_in(directory / META_DIR):
        later = {
            path: stamp
            for path, stamp in read_stamps(directory).items()
            if stamp != noted.get(path) and stamp == _stamp_or_none(directory / path)
        }
        _write_stamps(directory, manifest, set(bad) - later.keys(), {**read, **later})
    return set(bad) & later.keys()


def _stamp_or_none(path: Path) -> Stamp | None:
    try:
        return stamp_of(path)
    except OSError:
        return None


def read_stamps(directory: Path) -> dict[str, Stamp]:
    """The stamps as noted; unreadable ones count as none, so that every file is suspect."""
    try:
        value = json.loads((directory / META_DIR / STAMPS_FILE).read_bytes())
        return {path: (int(s[0]), int(s[1]), int(s[2])) for path, s in value.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def publish(layout: Layout, tree: Tree) -> Path:
    """Sync, add the manifest, rename into the store, point the revision at it.

    The order is what makes it never half: data on the disk before the name, the name on the disk
    before the link. Returns the placed directory; the tree's open files stay good.
    """
    manifest = tree.manifest
    key = key_of(manifest)
    target = layout.placed_dir(key)
    tree.sync()
    meta = tree.directory / META_DIR
    meta.mkdir(exist_ok=True)
    write_file(meta / MANIFEST_FILE, manifest.encoded)
    write_stamps(tree.directory, manifest)
    sync_dir(tree.directory)
    if target.exists():
        remove_tree(tree.directory)
    else:
        tree.directory.rename(target)
        sync_dir(layout.store)
        sync_dir(layout.staging)
    point(layout, manifest.model, manifest.revision, key)
    return target


def point(layout: Layout, model: str, revision: str, key: str) -> Path:
    """Let ROOT/<slug>/<revision> lead to the placed copy. Nothing is done when it does."""
    ref = layout.ref(model, revision)
    wanted = f"../{layout.store.name}/{key}"
    if ref.is_symlink() and str(ref.readlink()) == wanted:
        return ref
    if ref.exists() and not ref.is_symlink():
        raise WeightsError(f"{ref} is in the way; it was not made by this tool")
    ref.parent.mkdir(exist_ok=True)
    fresh = ref.with_name(f".{ref.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(wanted)
    fresh.rename(ref)
    sync_dir(ref.parent)
    return ref


def users_of(layout: Layout, key: str) -> list[str]:
    directory = layout.pins / key
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def pin(layout: Layout, key: str, user: str) -> None:
    """Note that `user`, a unit's name, uses this copy (and no other of this root)."""
    if "/" in user or user.startswith("."):
        raise WeightsError(f"{user!r} is not a unit's name")
    with alone_in(layout.pins):  # none is removed between the look and the note
        if not layout.placed_dir(key).is_dir():
            raise WeightsError(f"{key} is not placed here, {user} cannot use it")
        (layout.pins / key).mkdir(exist_ok=True)
        (layout.pins / key / user).touch()
    for other in layout.pins.iterdir():
        if other.name != key:
            unpin(layout, other.name, user)


def unpin(layout: Layout, key: str, user: str) -> None:
    with suppress(FileNotFoundError):
        (layout.pins / key / user).unlink()
    with suppress(OSError):  # somebody else uses it, or it is gone
        (layout.pins / key).rmdir()


def remove(layout: Layout, key: str) -> None:
    """Remove a placed copy: link first, then the name, then the bytes.

    Raises WeightsError naming the users of a pinned copy, or the process that serves it.
    """
    target, doomed = layout.placed_dir(key), layout.staging / f"{key}.removed"
    remove_tree(doomed)
    with alone_in(layout.pins):  # nobody becomes its user until its name is gone
        users = users_of(layout, key)
        if users:
            raise WeightsError(f"{key} is used by {', '.join(users)}; it stays")
        holder = lock_holder(layout, key)
        if holder is not None:
            raise WeightsError(f"{key} is being worked on by process {holder}; it stays")
        if not target.is_dir():
            raise WeightsError(f"{key} is not placed here")
        for ref in _refs_to(layout, key):
            ref.unlink()
            sync_dir(ref.parent)
            with suppress(OSError):  # other revisions of the model are there
                ref.parent.rmdir()
        target.rename(doomed)
    sync_dir(layout.store)
    remove_tree(doomed)


def _refs_to(layout: Layout, key: str) -> list[Path]:
    wanted = f"../{layout.store.name}/{key}"
    slug = key.partition("@")[0]
    directory = layout.root / slug
    if not directory.is_dir():
        return []
    return [p for p in directory.iterdir() if p.is_symlink() and str(p.readlink()) == wanted]


def prune(layout: Layout, model_key: str, keep: int) -> list[str]:
    """Remove the oldest placed copies of that copy's model until `keep` are left.

    Never model_key itself, a copy somebody uses, or one being served. Returns the removed keys.
    """
    slug = model_key.partition("@")[0]
    others = [k for k in layout.placed_keys() if k != model_key and k.partition("@")[0] == slug]
    others.sort(key=lambda key: _placed_at(layout, key), reverse=True)
    removed = []
    for key in others[max(keep - 1, 0) :]:
        with suppress(WeightsError):  # somebody uses it or works on it
            remove(layout, key)
            removed.append(key)
    _sweep(layout, slug)
    return removed


def _sweep(layout: Layout, slug: str) -> None:
    """Take away what of that model was begun and given up: nobody works on it, nothing was written
    to it for a week. No command shows it, and it holds the room of a model."""
    for path in layout.staging.glob(f"{slug}@*"):
        key = path.name.partition(".expected")[0]
        if lock_holder(layout, key) is None and time.time() - _written_at(path) > _GIVEN_UP_S:
            if path.is_dir():
                remove_tree(path)
            else:
                path.unlink()


def _written_at(path: Path) -> float:
    newest = path.lstat().st_ctime
    for here, directories, names in os.walk(path):
        for name in (*directories, *names):
            with suppress(FileNotFoundError):
                newest = max(newest, (Path(here) / name).lstat().st_ctime)
    return newest


def _placed_at(layout: Layout, key: str) -> float:
    """When it was placed: its manifest is written once. A copy without one is the oldest."""
    try:
        return (layout.placed_dir(key) / META_DIR / MANIFEST_FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0
