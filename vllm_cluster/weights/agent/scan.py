"""Find the plain files of a model in a directory, however it is laid out."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from vllm_cluster.weights.agent.errors import WeightsError, from_os_error
from vllm_cluster.weights.manifest import ManifestError, check_path

# Hidden names are never part of a model: what hub tools leave beside a download (.cache,
# .gitattributes, .locks), and our own.
HIDDEN = "."
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when looked at: path in the model, where its bytes are, how it looked.

    Two looks at one file are equal whatever the inode's number: FUSE gives another when the kernel
    forgot the first, as it does while 140 GB are read (libfuse, without use_ino).
    """

    path: str
    real: Path
    size_bytes: int
    mtime_ns: int
    inode: int = field(compare=False)


def find_model_dir(directory: Path, revision: str) -> Path:
    """The directory with the files: `directory`, or a snapshot when it is a hub cache of a model.

    A cache (huggingface_hub, "models--ORG--NAME") holds refs/, blobs/ and snapshots/<commit>/ of
    links into blobs/; copied with its links followed and its blobs too, a model is there twice.
    Raises WeightsError when the revision is not in the cache.
    """
    snapshots = directory / "snapshots"
    if not (snapshots.is_dir() and (directory / "blobs").is_dir()):
        return directory
    ref = directory / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    if not (snapshots / commit).is_dir():
        known = ", ".join(sorted(path.name for path in snapshots.iterdir())) or "none"
        raise WeightsError(
            f"the cache has no revision {revision} (it has: {known})", file=str(directory)
        )
    return snapshots / commit


def scan(directory: Path) -> list[SourceFile]:
    """Every file, links to files resolved.

    Raises WeightsError naming what cannot be part of a model: a broken link, a link to a directory,
    a device, a name that is not safe.
    """
    if not directory.is_dir():
        raise WeightsError("no such directory", file=str(directory))
    found = []
    for here, directories, names in os.walk(directory, onerror=_unreadable):
        for name in list(directories):
            if name.startswith(HIDDEN):
                directories.remove(name)
            elif (Path(here) / name).is_symlink():
                raise WeightsError("a link to a directory; give its target", file=f"{here}/{name}")
        for name in names:
            if not name.startswith(HIDDEN):
                found.append(_look(directory, Path(here) / name))
    if not found:
        raise WeightsError("the directory has no files", file=str(directory))
    return sorted(found, key=lambda file: file.path)


def _look(directory: Path, path: Path) -> SourceFile:
    name = path.relative_to(directory).as_posix()
    try:
        check_path(name)
        real = path.resolve(strict=True)
        info = real.stat()
    except ManifestError as exc:
        raise WeightsError(str(exc), file=str(directory)) from exc
    except (OSError, RuntimeError) as exc:
        if isinstance(exc, OSError) and exc.errno not in _NOWHERE:
            raise from_os_error(exc, file=str(path)) from exc
        raise WeightsError("a link that leads nowhere", file=str(path)) from exc
    if not stat.S_ISREG(info.st_mode):
        raise WeightsError("not a plain file", file=str(path))
    return SourceFile(name, real, info.st_size, info.st_mtime_ns, info.st_ino)


def _unreadable(exc: OSError) -> None:
    raise from_os_error(exc, file=str(exc.filename)) from exc
