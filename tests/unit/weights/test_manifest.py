"""The manifest accepts what it wrote and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.weights.manifest import (
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    FileEntry,
    ManifestError,
    check_path,
    chunk_bytes_for,
    make_manifest,
    parse_manifest,
    slug_of,
)

DIGEST = hashlib.sha256(b"").hexdigest()


def entry(path: str, size_bytes: int = 10, pieces: int | None = None) -> FileEntry:
    count = -(-size_bytes // MIN_CHUNK_BYTES) if pieces is None else pieces
    return FileEntry(path, size_bytes, DIGEST, (DIGEST,) * count)


def test_identity_is_the_sha256_of_what_is_on_the_disk() -> None:
    manifest = make_manifest("org/m", "r1", MIN_CHUNK_BYTES, [entry("b"), entry("a")])
    assert manifest.identity == hashlib.sha256(manifest.encoded).hexdigest()
    assert parse_manifest(manifest.encoded, manifest.identity) == manifest


def test_order_of_the_files_does_not_make_another_model() -> None:
    one = make_manifest("m", "r", MIN_CHUNK_BYTES, [entry("a"), entry("b")])
    other = make_manifest("m", "r", MIN_CHUNK_BYTES, [entry("b"), entry("a")])
    assert one.identity == other.identity


def test_chunks_cover_every_byte_once() -> None:
    sizes = {"a": 3 * MIN_CHUNK_BYTES + 1, "b": 0, "c": MIN_CHUNK_BYTES}
    manifest = make_manifest("m", "r", MIN_CHUNK_BYTES, [entry(p, s) for p, s in sizes.items()])
    covered = dict.fromkeys(sizes, 0)
    for number, chunk in enumerate(manifest.chunks()):
        path = manifest.files[chunk.file_index].path
        assert chunk.index == number
        assert chunk.offset == covered[path]
        covered[path] += chunk.length
    assert covered == sizes


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../up", "a/../b", "a//b", "", ".", "a/.", "a/", "nul\0", "line\nfeed",
        "back\\slash", "x" * 256, ".vllm-cluster/manifest.json", "\ud800",
    ],
)  # fmt: skip
def test_a_path_that_leaves_the_directory_or_is_ours_is_refused(path: str) -> None:
    with pytest.raises(ManifestError):
        check_path(path)


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4))
def test_an_accepted_path_stays_below_whatever_it_is_joined_to(parts: list[str]) -> None:
    path = "/".join(parts)
    try:
        check_path(path)
    except ManifestError:
        return
    pieces = path.split("/")
    assert ".." not in pieces
    assert "" not in pieces
    assert not path.startswith("/")


def changed(**more: Any) -> bytes:
    manifest = make_manifest("org/m", "r1", MIN_CHUNK_BYTES, [entry("a"), entry("d/b")])
    value = json.loads(manifest.encoded)
    value.update(more)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def file(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "size": 10, "sha256": DIGEST, "chunks": [DIGEST], **more}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"\xff", b"null",
        changed(format=2),
        changed(chunk_bytes=MIN_CHUNK_BYTES + 1),
        changed(chunk_bytes=1),
        changed(model="../x"),
        changed(revision="a/b"),
        changed(files=[]),
        changed(files=[file("b"), file("a")]),
        changed(files=[file("a"), file("a")]),
        changed(files=[file("a"), file("a/b")]),
        changed(files=[file("../a")]),
        changed(files=[file("a", size=-1)]),
        changed(files=[file("a", size=True)]),
        changed(files=[file("a", chunks=[])]),
        changed(files=[file("a", chunks=["x"])]),
        changed(files=[file("a", sha256="00")]),
        changed(extra=1),
        changed() + b"\n",
    ],
)  # fmt: skip
def test_a_manifest_not_exactly_as_we_write_it_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(data)


def test_another_models_manifest_is_refused() -> None:
    with pytest.raises(ManifestError, match="hash"):
        parse_manifest(changed(), "0" * 64)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_chunk_is_small_beside_its_model(total_bytes: int) -> None:
    size = chunk_bytes_for(total_bytes)
    assert MIN_CHUNK_BYTES <= size <= MAX_CHUNK_BYTES
    assert size & (size - 1) == 0
    assert size == MIN_CHUNK_BYTES or size <= total_bytes / 512


@pytest.mark.parametrize("name", ["a/b/c", "a--b", "", "/a", "a/", "..", "a b", "ä"])
def test_names_that_would_not_be_one_directory_are_refused(name: str) -> None:
    with pytest.raises(ManifestError):
        slug_of(name)


def test_two_models_do_not_share_a_directory() -> None:
    assert slug_of("org/name") != slug_of("org-name")
