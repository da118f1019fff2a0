"""A refused port is a firewall's answer only where somebody was known to listen before the dial."""

from __future__ import annotations

import pytest

from tests.unit.hosts.recorder import sent
from vllm_cluster.operations import network

PEER, PORT = "10.0.0.2", 60999
REFUSED = f"mtu 1500\ntcp {PEER} {PORT} refused\nwhole {PEER} yes\nsmall {PEER} yes\n"


class Peer(dict[str, str]):
    """Answers dials; it listens from the start, or only since it was dialled."""

    def __init__(self, *, from_the_start: bool) -> None:
        super().__init__({"/dev/tcp/": REFUSED})
        self.from_the_start, self.dialled = from_the_start, False

    def items(self):  # type: ignore[no-untyped-def]
        self.dialled = True
        return super().items()

    def listens(self, address: str) -> frozenset[int]:
        assert address == PEER
        there = self.from_the_start or self.dialled
        self.dialled = False  # the next look is before the next dial
        return frozenset({PORT}) if there else frozenset()


def said(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(network, "_listens", peer.listens)

    def step() -> None:
        network.paths_are_open(address="10.0.0.1", peers={"node-b": PEER}, ports=[PORT])

    return sent(step, "node-a", {"answers": peer})


def test_a_peer_that_listened_before_it_was_dialled_was_rejected_by_a_firewall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (command,) = said(Peer(from_the_start=True), monkeypatch)
    assert "drops or rejects" in command


def test_a_peer_that_listens_only_since_it_was_dialled_has_rejected_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert said(Peer(from_the_start=False), monkeypatch) == []
