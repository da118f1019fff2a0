"""Cards and the ways between hosts: what is wrong is said before anything hangs on it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from vllm_cluster.facts.network import NetworkFact, PathFact
from vllm_cluster.plan.network import Card, PathState, card_problems, path_problems
from vllm_cluster.steps.render import templates

# Two ports of one RoCE card and a management card, Ubuntu 22.04.
HOST = """address lo 127.0.0.1/8
address eno1 10.1.0.5/24
address ens1f0np0 192.168.1.10/24
address docker0 172.17.0.1/16
link lo 65536 unknown
link eno1 1500 up 1
link ens1f0np0 9000 up 1
link docker0 1500 down
route 192.168.1.11 ens1f0np0
rdma mlx5_0 1 Ethernet 4: ACTIVE
rdma mlx5_1 1 Ethernet 1: DOWN
"""
STATE = NetworkFact().process(HOST.splitlines())
CARD = Card(
    address="192.168.1.10",
    fabric=IPv4Network("192.168.1.0/24"),
    interface=None,
    peers={"node-b": "192.168.1.11"},
)


def test_a_sound_host_has_nothing_to_say() -> None:
    assert list(card_problems(STATE, CARD)) == []
    assert list(card_problems(STATE, replace(CARD, devices=("mlx5_0:1",)))) == []


@pytest.mark.parametrize(
    ("lines", "card", "words"),
    [
        ("", replace(CARD, address="192.168.1.99"), "no interface holds 192.168.1.99; it has 127."),
        (
            "",
            replace(CARD, interface="eno1"),
            "is on ens1f0np0, and the description insists on eno1",
        ),
        ("address eno1 192.168.1.200/24\n", CARD, "ens1f0np0 and eno1 are both in 192.168.1.0/24"),
        ("link ens1f0np0 9000 down\n", CARD, "ens1f0np0 is down"),
        ("route 192.168.1.11 eno1\n", CARD, "the way to node-b (192.168.1.11) leads over eno1"),
        ("", replace(CARD, devices=("mlx5_7",)), "no RDMA device mlx5_7 here; it has mlx5_0:1"),
        ("", replace(CARD, devices=("mlx5_1",)), "mlx5_1 is not active (1: DOWN)"),
    ],
)
def test_a_wrong_card_is_refused_with_the_fix(lines: str, card: Card, words: str) -> None:
    key = lines.split()[:2]
    kept = [line for line in HOST.splitlines() if not key or line.split()[:2] != key]
    before = HOST.splitlines() if lines.startswith("address") else kept
    (said,) = card_problems(NetworkFact().process([*before, *lines.splitlines()]), card)
    assert words in said


PEERS = {"node-b": "10.0.0.2"}


def paths(*lines: str) -> PathState:
    state = PathFact().process(["mtu 9000", *lines])
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["tcp 10.0.0.2 20999 silent", "tcp 10.0.0.2 60999 silent"], "does not answer (silent)"),
        (["tcp 10.0.0.2 20999 No route to host"], "does not answer (No route to host)"),
        (
            ["tcp 10.0.0.2 20999 refused", "tcp 10.0.0.2 60999 silent"],
            "lets some ports in and not 60999",
        ),
        (
            ["tcp 10.0.0.2 20999 open", "whole 10.0.0.2 no", "small 10.0.0.2 yes"],
            "packets of 9000 bytes, the MTU here, do not reach node-b (10.0.0.2) whole; 1500 bytes",
        ),
    ],
)
def test_a_way_that_is_blocked_or_narrow_is_refused(lines: list[str], words: str) -> None:
    (said,) = path_problems(paths(*lines), PEERS, {})
    assert words in said


def test_a_refusal_is_an_answer_only_where_nobody_listens() -> None:
    lines = ["tcp 10.0.0.2 20999 refused", "tcp 10.0.0.2 60999 open", "whole 10.0.0.2 yes"]
    assert list(path_problems(paths(*lines), PEERS, {"10.0.0.2": {60999}})) == []
    (said,) = path_problems(paths(*lines), PEERS, {"10.0.0.2": {20999, 60999}})
    assert "lets some ports in and not 20999" in said


def test_without_ping_nothing_is_claimed() -> None:
    assert PathFact().process(["mtu 1500", "ping missing"]) is None


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    """Two RoCE devices with their IPv4 address at index 3, and an InfiniBand one."""
    for device, layer in (("mlx5_0", "Ethernet"), ("mlx5_1", "Ethernet"), ("ib0", "InfiniBand")):
        port = tmp_path / device / "ports" / "1"
        (port / "gid_attrs" / "types").mkdir(parents=True)
        (port / "gids").mkdir()
        (port / "state").write_text("4: ACTIVE\n")
        (port / "link_layer").write_text(f"{layer}\n")
        mac, ipv4 = (
            "fe80:0000:0000:0000:0000:0000:0000:0001",
            "0000:0000:0000:0000:0000:ffff:c0a8:010a",
        )
        rows = [("IB/RoCE v1", mac), ("RoCE v2", mac), ("IB/RoCE v1", ipv4), ("RoCE v2", ipv4)]
        for index, (kind, gid) in enumerate(rows):
            (port / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
            (port / "gids" / str(index)).write_text(f"{gid}\n")
    return tmp_path


def rdma_env(cards: Path, *devices: str) -> subprocess.CompletedProcess[str]:
    script = templates() / "usr/local/lib/vllm-cluster/rdma-env"
    command = ["bash", str(script), str(cards), str(cards / "run" / "env"), *devices]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_gid_index_is_that_of_roce_v2_over_ipv4(cards: Path) -> None:
    assert rdma_env(cards, "mlx5_0", "mlx5_1:1").returncode == 0
    assert (cards / "run" / "env").read_text() == "NCCL_IB_GID_INDEX=3\n"


def test_infiniband_has_no_index_and_none_is_set_empty(cards: Path) -> None:
    assert rdma_env(cards, "ib0").returncode == 0
    assert (cards / "run" / "env").read_text() == ""


def test_an_index_that_drifted_apart_stops_the_start(cards: Path) -> None:
    port = cards / "mlx5_1" / "ports" / "1"
    for folder in ("gids", "gid_attrs/types"):
        (port / folder / "3").rename(port / folder / "4")
    done = rdma_env(cards, "mlx5_0", "mlx5_1")
    assert done.returncode == 1
    assert "mlx5_1 port 1 has it at 4, another device at 3" in done.stderr


def test_a_device_that_is_down_or_missing_stops_the_start(cards: Path) -> None:
    (cards / "mlx5_0" / "ports" / "1" / "state").write_text("1: DOWN\n")
    assert "mlx5_0 port 1 is not active: 1: DOWN" in rdma_env(cards, "mlx5_0").stderr
    assert "mlx5_9 has no port 1" in rdma_env(cards, "mlx5_9").stderr
