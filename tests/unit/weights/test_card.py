"""What a host's card says of its speed, and which card that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.weights.agent.card import card_mbit

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eno1\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eno1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
ib0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


@pytest.mark.parametrize(
    ("address", "speed", "real", "mbit"),
    [
        ("10.77.0.2", "100000\n", "device", 100_000),  # 10.77.0.0/24, not 10.0.0.0/8
        ("10.77.0.2", "50000\n", "bonding", 50_000),
        ("10.77.0.2", "10000\n", "veth", None),  # what no card is has no speed of its own
        ("10.77.0.2", "-1\n", "device", None),
        ("10.77.0.2", "unknown\n", "device", None),
        ("192.168.1.1", "100000\n", "device", None),
        ("fd00::1", "100000\n", "device", None),
    ],
)
def test_the_cards_own_speed(
    tmp_path: Path, address: str, speed: str, real: str, mbit: int | None
) -> None:
    routes = tmp_path / "route"
    routes.write_text(ROUTES)
    card = tmp_path / "net" / "ib0"
    (card / real).mkdir(parents=True)
    (card / "speed").write_text(speed)
    assert card_mbit(address, routes, tmp_path / "net") == mbit
