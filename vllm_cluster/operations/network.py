"""Checks of network cards and of the ways between hosts. They change nothing."""

from __future__ import annotations

import time
from collections.abc import Generator

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.network import LISTEN_S, Listening, NetworkFact, PathFact
from vllm_cluster.operations import packages
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan.network import Card, card_problems, path_problems

Commands = Generator[StringCommand, None, None]


@operation()
def card_is_right(card: Card) -> Commands:
    """Refuse where the fabric address is not on one card that leads to every other host."""
    state = host.get_fact(NetworkFact, peers=list(card.peers.values()))
    problems = list(card_problems(state, card))
    if problems:
        yield refuse("; ".join(problems))
        return
    name = state.interface(card.address)
    host.noop(f"{card.address} is on {name}, MTU {state.mtu.get(name, 0)}")


# By fabric address: the ports on which that host listens, and since when (monotonic seconds).
_LISTENING: dict[str, tuple[frozenset[int], float]] = {}


@operation()
def awaited(address: str, ports: list[int]) -> Commands:
    """Listen on `ports` for a moment, so that the others of this run can tell a firewall that
    rejects from a port where nobody listens."""
    began = time.monotonic()
    _LISTENING[address] = (host.get_fact(Listening, ports=ports, address=address), began)
    host.noop(f"listens on {', '.join(map(str, ports))} for {LISTEN_S} s")
    yield from ()


def _listens(address: str) -> frozenset[int]:
    """Where the host with this address surely still listens; nothing where it was not asked."""
    ports, began = _LISTENING.get(address, (frozenset(), 0.0))
    return ports if time.monotonic() - began < LISTEN_S / 2 else frozenset()


@operation()
def paths_are_open(address: str, peers: dict[str, str], ports: list[int]) -> Commands:
    """Refuse where another host does not answer, or not to packets as large as the card sends."""
    if not peers:
        host.noop("no other host")
        return
    addresses = list(peers.values())
    # Before anything is dialled: while facts are gathered hosts do not wait for each other, and a
    # peer that begins to listen after it was dialled has rejected nothing.
    began = {peer: _listens(peer) for peer in addresses}
    state = host.get_fact(PathFact, peers=addresses, ports=ports, address=address)
    if state is None:
        yield from packages.install(["iputils-ping"])
        state = host.get_fact(PathFact, peers=addresses, ports=ports, address=address)
    listening = {peer: began[peer] & _listens(peer) for peer in addresses}
    problems = [] if state is None else list(path_problems(state, peers, listening))
    if state is None or problems:
        yield refuse("; ".join(problems) or "there is no ping, and it cannot be installed")
        return
    host.noop(f"{', '.join(peers)} answer, to packets of {state.mtu} bytes too")
