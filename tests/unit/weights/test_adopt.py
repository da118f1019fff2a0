"""From a directory to a placed model."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.weights.agent.adopt import Adoption, adopt
from vllm_cluster.weights.agent.check import glance
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import Layout, Placed
from vllm_cluster.weights.agent.scan import scan as real_scan


def place(layout: Layout, source: Path, **more: Any) -> Placed:
    wish = Adoption(source, "org/m", more.pop("revision", "r1"), reserve_bytes=0, **more)
    return adopt(layout, wish, lambda _done, _total: None)


def sha256sum(path: Path) -> str:
    return subprocess.run(
        ["sha256sum", path], capture_output=True, text=True, check=True
    ).stdout.split()[0]


def same(one: Path, other: Path) -> bool:
    done = subprocess.run(
        ["diff", "-r", "-x", ".vllm-cluster", one, other], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.mark.parametrize("mode", ["copy", "link"])
def test_the_placed_copy_equals_its_source(layout: Layout, source: Path, mode: str) -> None:
    placed = place(layout, source, mode=mode)
    assert same(source, layout.root / "org--m" / "r1")
    for entry in placed.manifest.files:
        assert entry.sha256 == sha256sum(source / entry.path)


def test_chunk_hashes_are_those_of_the_pieces(layout: Layout, source: Path) -> None:
    manifest = place(layout, source).manifest
    for chunk in manifest.chunks():
        data = (source / manifest.files[chunk.file_index].path).read_bytes()
        piece = data[chunk.offset : chunk.offset + chunk.length]
        assert chunk.sha256 == hashlib.sha256(piece).hexdigest()


def test_copying_and_linking_give_one_identity(tmp_path: Path, source: Path) -> None:
    layouts = [Layout(tmp_path / name) for name in ("a", "b")]
    for made in layouts:
        made.make()
    copied, linked = (
        place(made, source, mode=mode) for made, mode in zip(layouts, ("copy", "link"), strict=True)
    )
    assert copied.manifest.identity == linked.manifest.identity


def test_linking_writes_nothing_twice(layout: Layout, source: Path) -> None:
    placed = place(layout, source)
    one, other = source / "model.safetensors", placed.directory / "model.safetensors"
    assert one.stat().st_ino == other.stat().st_ino


def test_moving_takes_the_download_away(layout: Layout, source: Path) -> None:
    placed = place(layout, source, mode="move")
    assert not source.exists()
    assert (placed.directory / "model.safetensors").stat().st_nlink == 1
    assert glance(placed).ok, "its files changed their ctime when the source went"


@pytest.fixture
def cache(tmp_path: Path, source: Path) -> Path:
    """The same model as huggingface_hub keeps it: blobs, and snapshots of links to them."""
    repo = tmp_path / "hub" / "models--org--m"
    snapshot = repo / "snapshots" / "abc123"
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc123")
    for path in [p for p in source.rglob("*") if p.is_file()]:
        blob = repo / "blobs" / sha256sum(path)
        blob.write_bytes(path.read_bytes())
        link = snapshot / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return repo


@pytest.mark.parametrize("revision", ["abc123", "main"])
def test_a_hub_cache_gives_plain_files_once(
    layout: Layout, source: Path, cache: Path, revision: str
) -> None:
    placed = place(layout, cache, revision=revision, mode="copy")
    assert same(source, placed.directory)
    assert not any(path.is_symlink() for path in placed.directory.rglob("*"))
    listed = sum(entry.size_bytes for entry in placed.manifest.files)
    assert listed == sum(p.stat().st_size for p in source.rglob("*") if p.is_file())


def test_a_hub_cache_without_the_revision_says_which_it_has(layout: Layout, cache: Path) -> None:
    with pytest.raises(WeightsError, match=r"no revision other \(it has: abc123\)"):
        place(layout, cache, revision="other")


def test_a_link_that_leads_nowhere_is_named(layout: Layout, source: Path) -> None:
    (source / "gone.bin").symlink_to("nowhere")
    with pytest.raises(WeightsError, match=r"gone\.bin: a link that leads nowhere"):
        place(layout, source)


def test_a_device_is_no_weight(layout: Layout, source: Path) -> None:
    os.mkfifo(source / "pipe")
    with pytest.raises(WeightsError, match="pipe: not a plain file"):
        place(layout, source)


def expected(source: Path) -> dict[str, tuple[int, str | None]]:
    files = [path for path in source.rglob("*") if path.is_file()]
    return {str(path.relative_to(source)): (path.stat().st_size, sha256sum(path)) for path in files}


def test_a_byte_that_is_not_the_hubs_is_refused(layout: Layout, source: Path) -> None:
    published = expected(source)
    with (source / "model.safetensors").open("r+b") as stream:
        stream.seek(500_000)
        stream.write(b"\xff\xfe")
    with pytest.raises(WeightsError, match=r"model\.safetensors: SHA-256 is .* published as"):
        place(layout, source, expected=published)
    assert layout.placed_keys() == []
    assert not (layout.root / "org--m").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "config.json").unlink(), "config.json: the source lacks this file"),
        (lambda d: os.truncate(d / "model.safetensors", 9), "has 9 bytes, published with 896000"),
        (lambda d: (d / "new.bin").touch(), "new.bin: is not among the published files"),
    ],
)
def test_a_download_that_is_not_what_was_published_is_refused(
    layout: Layout, source: Path, damage: Any, words: str
) -> None:
    published = expected(source)
    damage(source)
    with pytest.raises(WeightsError, match=words):
        place(layout, source, expected=published)


def test_what_an_earlier_push_left_beside_the_files_is_taken_away(
    layout: Layout, source: Path
) -> None:
    published = expected(source)
    (source / "old").mkdir()
    (source / "old" / "shard").touch()
    placed = place(layout, source, mode="move", expected=published)
    assert {entry.path for entry in placed.manifest.files} == set(published)


def test_a_source_that_changes_under_the_copy_is_not_placed(
    layout: Layout, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[Path] = []

    def scan(directory: Path) -> Any:
        if scans:  # the second look, after the bytes were read
            (source / "config.json").write_text('{"a": 2}')
        scans.append(directory)
        return real_scan(directory)

    monkeypatch.setattr("vllm_cluster.weights.agent.adopt.scan", scan)
    with pytest.raises(WeightsError, match="changed while it was read"):
        place(layout, source, mode="copy")
    assert layout.placed_keys() == []


def test_too_little_room_is_said_before_the_first_byte(layout: Layout, source: Path) -> None:
    wish = Adoption(source, "org/m", "r1", mode="copy", reserve_bytes=1 << 60)
    with pytest.raises(WeightsError, match="GiB free"):
        adopt(layout, wish, lambda _done, _total: None)
    assert list(layout.staging.iterdir()) == []


def test_a_disk_that_is_not_mounted_is_said_before_the_first_byte(
    layout: Layout, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match="is not mounted"):
        place(layout, source, mode="copy", mountpoint=str(tmp_path))
    with pytest.raises(WeightsError, match="is not on the file system mounted at /proc"):
        place(layout, source, mode="copy", mountpoint="/proc")


def test_a_copy_that_was_damaged_gives_way_to_the_same_model_placed_again(
    layout: Layout, source: Path
) -> None:
    damaged = place(layout, source, mode="copy").directory / "model.safetensors"
    damaged.write_bytes(b"")
    again = place(layout, source, mode="copy")
    assert same(source, again.directory)
    assert list(layout.staging.iterdir()) == []
