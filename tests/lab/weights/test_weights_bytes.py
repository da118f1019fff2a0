"""Bytes and files that are not what they were: found, named, not passed on, mended by the piece."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.weights.fleet import MODEL, REVISION, Fleet, wait_until
from tests.lab.weights.helpers import (
    CHUNK_BYTES,
    SHARD,
    everybody_has_it,
    flip,
    nothing_visible,
    set_back,
)
from tests.lab.weights.proxy import FlippingProxy

pytestmark = pytest.mark.lab


def test_a_byte_flipped_at_the_source_is_not_accepted_anywhere(fleet: Fleet) -> None:
    started = fleet.start_all([1, 2])
    wait_until(lambda: fleet.state(0).get("phase") == "serving", 30, "the first host serves")
    flip(fleet.placed(0) / SHARD, 1_000_000)
    assert started[1].wait(60) == 1
    assert started[2].wait(60) == 1
    for number in (1, 2):
        nothing_visible(fleet, number)
    assert f"{SHARD}: the 262144 bytes at 786432 are right on no host" in fleet.log(1)
    assert "node-0: has it damaged on its disk" in fleet.log(1)
    assert any(SHARD in note for note in fleet.state(0)["notes"])


def test_a_source_damaged_before_is_refused_where_it_lies(fleet: Fleet) -> None:
    flip(fleet.placed(0) / SHARD, 1_000_000)
    serving = fleet.start(0, "serve", fleet.jobs([1])[fleet.name(0)])
    assert serving.wait(30) == 1
    assert f"node-0: the placed copy is not whole: {SHARD}" in fleet.log(0)


def test_a_byte_flipped_on_the_way_is_fetched_again(fleet: Fleet, source: Path) -> None:
    with FlippingProxy(fleet.net, number=1, target=fleet.net.address(0), flips=3) as proxy:
        jobs = proxy.redirect(fleet.jobs([1]), "node-1")
        started = [
            fleet.start(0, "serve", jobs[fleet.name(0)]),
            fleet.start(1, "pull", jobs[fleet.name(1)]),
        ]
        assert [process.wait(60) for process in started] == [0, 0], fleet.log(1)
        assert proxy.flipped == 3
    everybody_has_it(fleet, source, [1])
    state = fleet.state(1)
    assert state["refused_bytes"] == 3 * CHUNK_BYTES
    assert len(state["complaints"]) == 3
    assert all(line.startswith("node-0: model-") for line in state["complaints"])


@pytest.mark.parametrize(
    ("damage", "pieces"),
    [
        (lambda d: set_back(d / SHARD, lambda p: flip(p, 1_000_000)), 1),
        (lambda d: os.truncate(d / SHARD, (2 << 20) - 5), 1),
        (lambda d: (d / SHARD).unlink(), 8),
    ],
    ids=["flipped", "truncated", "deleted"],
)
def test_after_placement_only_what_is_bad_is_fetched(
    fleet: Fleet, source: Path, damage: object, pieces: int
) -> None:
    first = fleet.start_all([1])
    assert [process.wait(60) for process in first.values()] == [0, 0]
    assert callable(damage)
    damage(fleet.placed(1))
    done = fleet.call(1, "verify")
    assert done.returncode == 4
    assert SHARD in done.stderr
    jobs = fleet.jobs([1])
    parts = [
        fleet.start(0, "serve", jobs[fleet.name(0)]),
        fleet.start(1, "repair", jobs[fleet.name(1)]),
    ]
    assert [part.wait(60) for part in parts] == [0, 0], fleet.log(1)
    everybody_has_it(fleet, source, [1])
    assert fleet.state(1)["fetched_bytes"] == pieces * CHUNK_BYTES
    assert fleet.call(1, "check", "--model", MODEL, "--revision", REVISION).returncode == 0


def test_a_file_added_to_a_placed_model_is_named_and_removed_only_when_asked(
    fleet: Fleet,
) -> None:
    first = fleet.start_all([1])
    assert [process.wait(60) for process in first.values()] == [0, 0]
    stray = fleet.placed(1) / "model-00017-of-00016.safetensors"
    stray.touch()
    check = ("check", "--model", MODEL, "--revision", REVISION)
    done = fleet.call(1, *check)
    assert done.returncode == 4
    assert f"{stray.name}: not part of the model" in done.stderr
    started = fleet.start_all([1])
    assert started[1].wait(30) == 1
    assert started[0].wait(30) == 0
    assert f"node-1: the placed copy is not whole: {stray.name}" in fleet.log(1)
    assert stray.exists()
    fleet.options["remove_added"] = True
    started = fleet.start_all([1])
    assert [process.wait(30) for process in started.values()] == [0, 0]
    assert not stray.exists()
    assert fleet.call(1, *check).returncode == 0
