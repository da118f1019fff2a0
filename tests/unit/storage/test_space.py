"""Room for what is to come: needs on one file system add up, a small reserve stays."""

from __future__ import annotations

from vllm_cluster.plan.space import Need, Room, space_problems

GIB = 2**30
IMAGE = Need("the image", "docker", 20 * GIB, present="sha256:x")
WEIGHTS = Need("the weights", "/srv/models", 100 * GIB, present="/srv/models/m")
LOGS = Need("logs", "/var/log", 0)


def room(at: str, free_gib: float, *, present: bool = False, staged_gib: int = 0) -> Room:
    free = int(free_gib * GIB)
    return Room(at, f"{at}/path", free, 1000 * GIB, present, staged_gib * GIB)


def test_enough_room_is_no_problem() -> None:
    found = {"the image": room("/", 30), "the weights": room("/srv", 110), "logs": room("/", 30)}
    assert space_problems((IMAGE, WEIGHTS, LOGS), found, GIB) == []


def test_needs_on_one_file_system_add_up() -> None:
    found = {"the image": room("/", 115), "the weights": room("/", 115), "logs": room("/", 115)}
    (problem,) = space_problems((IMAGE, WEIGHTS, LOGS), found, GIB)
    for words in ("115.0 GiB free", "20.0 GiB for the image", "100.0 GiB for the weights"):
        assert words in problem
    assert "1.0 GiB that must stay free" in problem
    assert "free 6.0 GiB there" in problem


def test_what_is_there_already_needs_no_room() -> None:
    found = {"the image": room("/", 2, present=True), "the weights": room("/", 2, present=True)}
    assert space_problems((IMAGE, WEIGHTS), found, GIB) == []


def test_what_an_interrupted_copy_has_brought_counts() -> None:
    assert space_problems((WEIGHTS,), {"the weights": room("/srv", 42, staged_gib=60)}, GIB) == []
    assert space_problems((WEIGHTS,), {"the weights": room("/srv", 40, staged_gib=60)}, GIB)


def test_a_full_disk_is_told_though_nothing_is_to_be_put_there() -> None:
    (problem,) = space_problems((LOGS,), {"logs": room("/var", 0.1)}, GIB)
    assert problem.startswith("/var (/var/path) has 103 MiB free")


def test_a_small_file_system_keeps_a_twentieth() -> None:
    small = Room("/run/x", "/run/x/path", 60 * 2**20, 1000 * 2**20, False, 0)
    assert space_problems((LOGS,), {"logs": small}, GIB) == []
