"""Network cards and ways between hosts: what is wrong with them, in words.

Pure: a state goes in, words come out. Each names what was found and what mends it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device: `mlx5_0`, 1, `4: ACTIVE`, `Ethernet`."""

    device: str
    port: int
    state: str
    layer: str


@dataclass(frozen=True)
class NetworkState:
    """`addresses`: (interface, `10.0.0.1/24`). `mtu` and `up` by interface; `routes` maps a
    peer's address to the interface that leads there."""

    addresses: tuple[tuple[str, str], ...] = ()
    mtu: dict[str, int] = field(default_factory=dict)
    up: frozenset[str] = frozenset()
    routes: dict[str, str] = field(default_factory=dict)
    rdma: tuple[RdmaPort, ...] = ()

    def interface(self, address: str) -> str:
        """The interface that holds `address`; empty when none does."""
        return next((i for i, held in self.addresses if held.split("/")[0] == address), "")


@dataclass(frozen=True)
class Card:
    """The card that a host shall use. `devices` are RDMA devices, `mlx5_0` or `mlx5_0:1`."""

    address: str
    fabric: ipaddress.IPv4Network
    interface: str | None
    peers: dict[str, str]
    devices: tuple[str, ...] = ()


def card_problems(state: NetworkState, card: Card) -> Iterator[str]:
    """Why this host cannot reach the others by its fabric address."""
    found = state.interface(card.address)
    if not found:
        held = ", ".join(address for _, address in state.addresses)
        yield f"no interface holds {card.address}; it has {held}"
        return
    if card.interface is not None and card.interface != found:
        yield (
            f"{card.address} is on {found}, and the description insists on {card.interface}; "
            "correct hosts.NAME.interface, or move the address"
        )
    if found not in state.up:
        yield f"{found} is down; `ip link set {found} up`, and look at its cable"
    others = sorted(
        {name for name, held in state.addresses if name != found and _inside(held, card.fabric)}
    )
    if others:
        yield (
            f"{found} and {', '.join(others)} are both in {card.fabric}: Linux answers on either, "
            "and NCCL may take the other; give it another network, or none"
        )
    for name, peer in card.peers.items():
        way = state.routes.get(peer, "")
        if way and way != found:
            yield f"the way to {name} ({peer}) leads over {way}, not {found}; see `ip route get`"
    yield from _rdma_problems(state, card)


def _inside(held: str, network: ipaddress.IPv4Network) -> bool:
    return ipaddress.IPv4Interface(held).ip in network


def _rdma_problems(state: NetworkState, card: Card) -> Iterator[str]:
    there = {(port.device, port.port): port for port in state.rdma}
    for name in card.devices:
        device, _, number = name.partition(":")
        port = there.get((device, int(number or 1)))
        if port is None:
            have = ", ".join(sorted(f"{d}:{n}" for d, n in there)) or "none"
            yield f"no RDMA device {name} here; it has {have}; correct rdma.devices"
        elif "ACTIVE" not in port.state:
            yield f"the RDMA device {name} is not active ({port.state}); look at cable and switch"


@dataclass(frozen=True)
class PathState:
    """What came back from the peers. `tcp` maps (peer, port) to open, refused or silent, or to
    bash's words; `whole` maps a peer to whether a packet of the card's MTU came through whole,
    `small` the same for 1500 bytes."""

    mtu: int = 0
    tcp: dict[tuple[str, int], str] = field(default_factory=dict)
    whole: dict[str, bool] = field(default_factory=dict)
    small: dict[str, bool] = field(default_factory=dict)


def path_problems(
    state: PathState, peers: Mapping[str, str], listening: Mapping[str, Collection[int]]
) -> Iterator[str]:
    """Why the others cannot be reached.

    A refusal is an answer where nobody listens: nothing on the way dropped it. `listening` maps
    a peer to ports where somebody does: there a firewall rejected it with a reset.
    """
    for name, peer in peers.items():
        theirs = listening.get(peer, ())
        ports = {
            port: "rejected" if words == "refused" and port in theirs else words
            for (host, port), words in state.tcp.items()
            if host == peer
        }
        closed = {port: w for port, w in ports.items() if w not in {"open", "refused"}}
        if closed and len(closed) == len(ports):
            words = ", ".join(sorted(set(closed.values())))
            yield (
                f"{name} ({peer}) does not answer ({words}): it is off, or a firewall there or "
                "between drops or rejects what comes from here"
            )
        elif closed:
            told = ", ".join(map(str, sorted(closed)))
            yield (
                f"{name} ({peer}) lets some ports in and not {told}; vLLM opens ports that no "
                "setting names, so hosts of the cluster need every port of each other"
            )
        elif not state.whole.get(peer, True):
            smaller = "1500 bytes do" if state.small.get(peer) else "nor do 1500 bytes"
            yield (
                f"packets of {state.mtu} bytes, the MTU here, do not reach {name} ({peer}) whole; "
                f"{smaller}; give all cards and the switch one MTU"
            )
