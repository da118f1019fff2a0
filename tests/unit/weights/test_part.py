"""Two hosts on this machine's loopback: what is mended, and what is left alone."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.weights.agent.adopt import Adoption, adopt
from vllm_cluster.weights.agent.check import glance, read_everything
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.job import parse_job
from vllm_cluster.weights.agent.layout import Layout, Placed
from vllm_cluster.weights.agent.part import Part
from vllm_cluster.weights.agent.publish import pin, read_stamps
from vllm_cluster.weights.fanout import Host, Model, make_jobs

SHARD = "model.safetensors"
QUICK = {"reserve_bytes": 0, "linger_s": 2.0, "silence_s": 2.0, "remove_added": True}


def place(root: Path, source: Path, mode: str) -> tuple[Layout, Placed]:
    layout = Layout(root)
    layout.make()
    wish = Adoption(source, "org/m", "r1", mode, reserve_bytes=0)
    return layout, adopt(layout, wish, lambda _done, _total: None)


def pull(good: tuple[Layout, Placed], hurt: Layout, **more: Any) -> dict[str, object]:
    """`hurt` asks the host that has it whole; both on addresses of their own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = Model("org/m", "r1", good[1].manifest.identity)
    jobs = make_jobs(
        model, [Host("a", "127.0.0.1")], [Host("b", "127.0.0.2")],
        token="t" * 20, port=port, options=QUICK,
    )  # fmt: skip
    serving = threading.Thread(target=Part(good[0], parse_job(jobs["a"])).run, args=("serve",))
    serving.start()
    job = json.dumps({**json.loads(jobs["b"]), **more})
    try:
        return Part(hurt, parse_job(job)).run("pull")
    finally:
        serving.join(30)


@pytest.fixture
def good(tmp_path: Path, source: Path) -> tuple[Layout, Placed]:
    return place(tmp_path / "a", source, "copy")


def test_what_is_mended_in_a_linked_copy_is_not_written_into_its_source(
    tmp_path: Path, source: Path, good: tuple[Layout, Placed]
) -> None:
    layout, placed = place(tmp_path / "b", source, "link")
    assert (source / SHARD).stat().st_nlink == 2
    with (source / SHARD).open("r+b") as stream:  # its owner changes it on purpose
        stream.seek(300_000)
        stream.write(b"mine")
    (source / "config.json").write_text('{"a": 2, "mine": true}')
    changed = {name: (source / name).read_bytes() for name in (SHARD, "config.json")}
    state = pull(good, layout)
    assert {name: (source / name).read_bytes() for name in changed} == changed
    assert glance(placed).ok
    assert read_everything(placed, threads=1).ok
    small = (placed.directory / "config.json").stat().st_size
    assert state["fetched_bytes"] == placed.manifest.chunk_bytes + small


@pytest.mark.parametrize("left", [b"", b"{", None])
def test_a_copy_whose_manifest_is_hurt_is_mended_though_a_unit_uses_it(
    tmp_path: Path, source: Path, good: tuple[Layout, Placed], left: bytes | None
) -> None:
    layout, placed = place(tmp_path / "b", source, "copy")
    pin(layout, placed.key, "vllm.service")
    manifest = placed.directory / ".vllm-cluster" / "manifest.json"
    manifest.unlink() if left is None else manifest.write_bytes(left)
    state = pull(good, layout)
    assert state["fetched_bytes"] == 0, "the bytes were right"
    assert glance(placed).ok
    assert read_everything(placed, threads=1).ok


@pytest.mark.parametrize("mode", ["copy", "link"])
def test_what_is_fetched_again_leaves_the_reserve_free(
    tmp_path: Path, source: Path, good: tuple[Layout, Placed], mode: str
) -> None:
    layout, placed = place(tmp_path / "b", source, mode)
    if mode == "copy":
        (placed.directory / SHARD).unlink()
    else:  # it gets a file of its own
        with (source / SHARD).open("r+b") as stream:
            stream.write(b"rotten")
    with pytest.raises(WeightsError, match=f"{SHARD}: .* GiB to spare"):
        pull(good, layout, reserve_bytes=1 << 60)
    assert (placed.directory / SHARD).exists() is (mode == "link")
    assert SHARD not in read_stamps(placed.directory)
    pull(good, layout)
    assert read_everything(placed, threads=1).ok


def test_a_bad_piece_is_mended_in_place_on_a_full_disk(
    tmp_path: Path, source: Path, good: tuple[Layout, Placed]
) -> None:
    layout, placed = place(tmp_path / "b", source, "copy")
    with (placed.directory / SHARD).open("r+b") as stream:
        stream.write(b"rotten")
    pull(good, layout, reserve_bytes=1 << 60)
    assert read_everything(placed, threads=1).ok
