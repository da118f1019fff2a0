"""Before a placed file is mended: is it ours alone?

A copy that was hard-linked shares its files with the directory it came from. What is written into
such a file is written into somebody else's, who may have changed it on purpose.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from vllm_cluster.weights.agent.check import Findings
from vllm_cluster.weights.agent.errors import from_os_error
from vllm_cluster.weights.agent.layout import Placed
from vllm_cluster.weights.agent.tree import BLOCK_BYTES
from vllm_cluster.weights.manifest import META_DIR, Chunk


def own_files(placed: Placed, found: Findings) -> None:
    """Put a file of its own in the place of each bad one that has another name too.

    It gets the right chunks, the others stay holes to be fetched. Raises WeightsError.
    """
    for index, entry in enumerate(placed.manifest.files):
        path = placed.directory / entry.path
        if entry.path not in {*found.damaged, *found.wrong_size} or not is_shared(path):
            continue
        wrong = set(found.damaged.get(entry.path, ()))
        size = placed.manifest.chunk_bytes
        right = [
            chunk
            for chunk in placed.manifest.chunks()
            if chunk.file_index == index and chunk.offset // size not in wrong
        ]
        fresh = placed.directory / META_DIR / "own.part"
        try:
            _copy(path, fresh, right, entry.size_bytes)
            fresh.replace(path)
        except OSError as exc:
            with suppress(OSError):
                fresh.unlink()
            raise from_os_error(exc, file=entry.path) from exc


def is_shared(path: Path) -> bool:
    """Whether it is a plain file with another name somewhere."""
    info = path.lstat()
    return stat.S_ISREG(info.st_mode) and info.st_nlink > 1


def _copy(path: Path, fresh: Path, right: list[Chunk], size_bytes: int) -> None:
    with path.open("rb", buffering=0) as source, fresh.open("wb", buffering=0) as copy:
        os.ftruncate(copy.fileno(), size_bytes)
        for chunk in right:
            position, end = chunk.offset, chunk.offset + chunk.length
            while position < end:
                data = os.pread(source.fileno(), min(BLOCK_BYTES, end - position), position)
                if not data:
                    break  # it was cut meanwhile; the hole is fetched, or found by the next reading
                position += os.pwrite(copy.fileno(), data, position)
        os.fsync(copy.fileno())
