"""A copy that was interrupted goes on from what is known to be on the disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.scan import SourceFile, scan
from vllm_cluster.weights.agent.take import Taker

CHUNK, MARK = 256 * 1024, 1 << 20
SIZE = 20 << 20


class CutError(Exception):
    pass


@pytest.fixture
def file(tmp_path: Path) -> SourceFile:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(os.urandom(SIZE))
    return scan(directory)[0]


@pytest.fixture
def read_bytes(file: SourceFile, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How much was read from the source itself."""
    inode, count, real = file.real.stat().st_ino, 0, os.preadv

    def preadv(handle: int, buffers: Any, offset: int) -> int:
        nonlocal count
        got = real(handle, buffers, offset)
        if os.fstat(handle).st_ino == inode:
            count += got
        return got

    monkeypatch.setattr(os, "preadv", preadv)
    return lambda: count


def taker(file: SourceFile, tmp_path: Path, stop_after: int | None = None) -> Taker:
    done = 0

    def count(length: int) -> None:
        nonlocal done
        done += length
        if stop_after is not None and done > stop_after:
            raise CutError

    return Taker(file, tmp_path / "staging" / file.path, CHUNK, MARK, count)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_under_2_percent_beyond_the_last_mark_is_read_again(
    file: SourceFile, tmp_path: Path, read_bytes: Callable[[], int], share: float
) -> None:
    with pytest.raises(CutError):
        taker(file, tmp_path, int(share * SIZE)).copy()
    assert not (tmp_path / "staging" / file.path).exists()
    entry = taker(file, tmp_path).copy()
    assert read_bytes() - SIZE <= MARK + CHUNK
    data = (tmp_path / "staging" / file.path).read_bytes()
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    assert data == file.real.read_bytes()
    assert sorted(p.name for p in (tmp_path / "staging").iterdir()) == [file.path]


def test_what_lies_beyond_the_mark_is_not_believed(file: SourceFile, tmp_path: Path) -> None:
    """After a power cut it may be zeros: the size came to the disk, the data did not."""
    with pytest.raises(CutError):
        taker(file, tmp_path, SIZE // 2).copy()
    part = tmp_path / "staging" / f"{file.path}.part"
    marked = int(part.with_name(part.name + ".mark").read_text().split()[0])
    with part.open("r+b") as stream:
        stream.seek(marked)
        stream.write(bytes(SIZE - marked))
    taker(file, tmp_path).copy()
    assert (tmp_path / "staging" / file.path).read_bytes() == file.real.read_bytes()


def test_a_source_that_was_replaced_meanwhile_is_read_from_its_start(
    file: SourceFile, tmp_path: Path
) -> None:
    with pytest.raises(CutError):
        taker(file, tmp_path, SIZE // 2).copy()
    file.real.write_bytes(os.urandom(SIZE))
    os.utime(file.real, ns=(1, 1))
    again = scan(file.real.parent)[0]
    taker(again, tmp_path).copy()
    assert (tmp_path / "staging" / file.path).read_bytes() == file.real.read_bytes()


def test_a_finished_file_is_not_read_again(
    file: SourceFile, tmp_path: Path, read_bytes: Callable[[], int]
) -> None:
    first = taker(file, tmp_path).copy()
    before = read_bytes()
    assert taker(file, tmp_path).copy() == first
    assert read_bytes() == before


def test_a_source_that_shrinks_while_it_is_read_is_named(file: SourceFile, tmp_path: Path) -> None:
    os.truncate(file.real, SIZE - 1)
    with pytest.raises(WeightsError, match=r"model\.safetensors: changed its size"):
        taker(file, tmp_path).copy()
