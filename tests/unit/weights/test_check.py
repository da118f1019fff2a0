"""What a placed copy's glance sees, and what only reading sees."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.weights.agent import commands
from vllm_cluster.weights.agent.adopt import Adoption, adopt
from vllm_cluster.weights.agent.check import Findings, glance, read_everything
from vllm_cluster.weights.agent.cli import main
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import Layout, Placed, job_lock
from vllm_cluster.weights.agent.publish import (
    pin,
    prune,
    remove,
    stamp_of,
    unpin,
    users_of,
    write_stamps,
)

SHARD = "model.safetensors"


def nothing(_done: int, _total: int) -> None:
    pass


@pytest.fixture
def placed(layout: Layout, source: Path) -> Placed:
    return adopt(layout, Adoption(source, "org/m", "r1", "copy", reserve_bytes=0), nothing)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        old = stream.read(1)
        stream.seek(at)
        stream.write(bytes([old[0] ^ 1]))


def test_what_was_just_placed_is_whole(placed: Placed) -> None:
    assert glance(placed).ok
    found = read_everything(placed, threads=2)
    assert found.ok
    assert found.read_bytes == placed.manifest.total_bytes


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / SHARD).unlink(), f"{SHARD}: the file is missing"),
        (lambda d: os.truncate(d / SHARD, 7), f"{SHARD}: the size is not the manifest's"),
        (lambda d: flip(d / SHARD, 300_000), f"{SHARD}: was written to after it was verified"),
        (lambda d: (d / "new").touch(), "new: not part of the model, was added"),
        (lambda d: (d / "sub" / "more").mkdir(), "sub/more: not part of the model, was added"),
        (
            lambda d: ((d / SHARD).rename(d / ".." / "x"), (d / SHARD).symlink_to("../x")),
            f"{SHARD}: the size is not the manifest's",
        ),
    ],
)
def test_a_glance_sees_it_and_names_the_file(
    placed: Placed, damage: Callable[[Path], object], words: str
) -> None:
    damage(placed.directory)
    assert words in glance(placed).sentences(placed.manifest.chunk_bytes)


def test_reading_finds_the_flipped_chunk_alone(placed: Placed) -> None:
    flip(placed.directory / SHARD, 300_000)
    found = read_everything(placed, threads=2)
    assert found.damaged == {SHARD: [300_000 // placed.manifest.chunk_bytes]}


def test_reading_finds_what_no_time_stamp_tells(placed: Placed) -> None:
    flip(placed.directory / SHARD, 300_000)
    write_stamps(placed.directory, placed.manifest)  # as if the disk had flipped it silently
    assert glance(placed).ok
    assert not read_everything(placed, threads=2).ok


def test_what_is_written_while_it_is_read_does_not_pass_for_read(placed: Placed) -> None:
    path = placed.directory / SHARD

    def behind_the_reader(_count: int) -> None:
        if not written:
            flip(path, 0)
            written.append(True)

    written: list[bool] = []
    found = read_everything(placed, threads=1, progress=behind_the_reader)
    assert found.suspect == [SHARD]
    write_stamps(placed.directory, placed.manifest, found.bad, found.stamps)
    assert glance(placed).suspect == [SHARD]
    # ... and one that is written to between the reading and the note of it
    found = read_everything(placed, threads=1)
    assert found.damaged == {SHARD: [0]}
    flip(path, 0)
    found = read_everything(placed, threads=1)
    flip(path, 0)
    write_stamps(placed.directory, placed.manifest, found.bad, found.stamps)
    assert glance(placed).suspect == [SHARD]


def verified(layout: Layout, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["--root", str(layout.root), "verify"])
    return status, capsys.readouterr().out


def test_what_is_mended_while_it_is_read_keeps_its_new_stamp(
    layout: Layout,
    placed: Placed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = placed.directory / SHARD
    flip(path, 300_000)
    write_stamps(placed.directory, placed.manifest)  # rotten: no stamp tells

    def mend_at_the_end(*words: Any) -> Findings:
        found = read_everything(*words)
        flip(path, 300_000)
        write_stamps(placed.directory, placed.manifest)
        return found

    monkeypatch.setattr(commands, "read_everything", mend_at_the_end)
    status, out = verified(layout, capsys)
    assert glance(placed).ok, "the unit starts"
    assert (status, f"{SHARD}: was mended while this was read" in out) == (0, True)


def test_what_rotted_loses_its_stamp_though_others_work_on_the_copy(
    layout: Layout, placed: Placed, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(placed.directory / SHARD, 300_000)
    write_stamps(placed.directory, placed.manifest)
    with job_lock(layout, placed.key):
        status, out = verified(layout, capsys)
    assert glance(placed).suspect == [SHARD]
    assert (status, f"process {os.getpid()} works on it" in out) == (4, True)


def test_what_was_given_up_a_week_ago_goes_with_the_next_placement(
    layout: Layout, placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "org--m@r0.pushed",
        "org--m@0123456789abcdef",
        "org--other@r0.pushed",
        "org--m@r2.adopt",
    ]
    for name in names:
        (layout.staging / name).mkdir()
        (layout.staging / name / "shard").touch()
    (layout.staging / "org--m@r0.download.expected.json").touch()
    prune(layout, placed.key, 2)
    assert len(list(layout.staging.iterdir())) == 5
    now = time.time()
    monkeypatch.setattr("vllm_cluster.weights.agent.publish.time.time", lambda: now + 8 * 86400)
    with job_lock(layout, "org--m@r2.adopt"):
        prune(layout, placed.key, 2)
    left = sorted(path.name for path in layout.staging.iterdir())
    assert left == ["org--m@r2.adopt", "org--other@r0.pushed"]


def test_a_truncated_file_lacks_the_chunks_at_its_end(placed: Placed) -> None:
    chunk = placed.manifest.chunk_bytes
    os.truncate(placed.directory / SHARD, 2 * chunk)
    assert read_everything(placed, threads=2).damaged == {SHARD: [2, 3]}


def test_a_touched_file_with_the_right_bytes_is_right(placed: Placed) -> None:
    os.utime(placed.directory / SHARD)
    assert glance(placed).suspect == [SHARD]
    assert read_everything(placed, threads=2).ok


def cached_pages(path: Path) -> int:
    done = subprocess.run(
        ["fincore", "--noheadings", "--output", "PAGES", path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.parametrize("warm", [False, True])
def test_reading_neither_fills_nor_empties_the_page_cache(placed: Placed, warm: bool) -> None:
    path = placed.directory / SHARD
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if warm:
            stream.read()
    before = cached_pages(path)
    assert (before > 0) is warm
    assert read_everything(placed, threads=2).ok
    assert cached_pages(path) == before


def test_a_lost_manifest_is_said(layout: Layout, placed: Placed) -> None:
    (placed.directory / ".vllm-cluster" / "manifest.json").unlink()
    with pytest.raises(WeightsError, match="lost its manifest"):
        layout.placed(placed.key)


def test_an_altered_manifest_is_not_this_models(layout: Layout, placed: Placed) -> None:
    flip_digit = placed.directory / ".vllm-cluster" / "manifest.json"
    text = flip_digit.read_text()
    flip_digit.write_text(text.replace('"r1"', '"r2"'))
    with pytest.raises(WeightsError, match="the manifest is that of"):
        layout.placed(placed.key)


def another(layout: Layout, source: Path, revision: str) -> Placed:
    (source / "config.json").write_text(f'{{"revision": "{revision}"}}')
    wish = Adoption(source, "org/m", revision, "copy", reserve_bytes=0, keep=99)
    return adopt(layout, wish, nothing)


def test_old_revisions_are_kept_by_count(layout: Layout, source: Path) -> None:
    copies = [another(layout, source, f"r{n}") for n in range(4)]
    for age, copy in enumerate(reversed(copies)):
        os.utime(
            copy.directory / ".vllm-cluster" / "manifest.json", (1_000_000 - age, 1_000_000 - age)
        )
    assert prune(layout, copies[3].key, keep=2) == [copies[1].key, copies[0].key]
    assert sorted(layout.placed_keys()) == sorted([copies[2].key, copies[3].key])
    assert sorted(p.name for p in (layout.root / "org--m").iterdir()) == ["r2", "r3"]


def test_a_copy_that_a_unit_uses_stays(layout: Layout, source: Path) -> None:
    old, new = another(layout, source, "r1"), another(layout, source, "r2")
    pin(layout, old.key, "vllm.service")
    assert prune(layout, new.key, keep=1) == []
    with pytest.raises(WeightsError, match=r"used by vllm\.service"):
        remove(layout, old.key)
    assert (old.directory / SHARD).exists()
    unpin(layout, old.key, "vllm.service")
    remove(layout, old.key)
    assert not old.directory.exists()
    assert not os.path.lexists(layout.root / "org--m" / "r1")


def test_a_unit_that_starts_while_its_copy_is_removed_is_refused(
    layout: Layout, placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def start_a_unit() -> None:
        try:
            pin(layout, placed.key, "vllm.service")
        except WeightsError as exc:
            refused.append(str(exc))

    unit = threading.Thread(target=start_a_unit)

    def between_the_looks(*_words: Any) -> None:
        unit.start()
        unit.join(0.5)  # it waits for the removal

    monkeypatch.setattr("vllm_cluster.weights.agent.publish.lock_holder", between_the_looks)
    remove(layout, placed.key)
    unit.join(10)
    assert len(refused) == 1
    assert "is not placed here, vllm.service cannot use it" in refused[0]
    assert users_of(layout, placed.key) == []


def test_a_unit_uses_one_copy_at_a_time(layout: Layout, source: Path) -> None:
    old, new = another(layout, source, "r1"), another(layout, source, "r2")
    pin(layout, old.key, "vllm.service")
    pin(layout, new.key, "vllm.service")
    remove(layout, old.key)
    assert layout.placed_keys() == [new.key]


def test_a_copy_being_served_stays(layout: Layout, placed: Placed) -> None:
    with job_lock(layout, placed.key), pytest.raises(WeightsError, match="being worked on"):
        remove(layout, placed.key)
    assert placed.directory.exists()


def test_a_revision_that_gets_other_content_leads_to_the_new_one(
    layout: Layout, source: Path
) -> None:
    first = adopt(layout, Adoption(source, "org/m", "r1", "copy", reserve_bytes=0), nothing)
    (source / "config.json").write_text("{}")
    second = adopt(layout, Adoption(source, "org/m", "r1", "copy", reserve_bytes=0), nothing)
    assert first.key != second.key
    assert (layout.root / "org--m" / "r1").resolve() == second.directory
    assert stamp_of(second.directory / SHARD) != stamp_of(first.directory / SHARD)
