"""What of the install section only shows against the rest of the description."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address
from typing import TYPE_CHECKING

from vllm_cluster.spec.install_model import Machine
from vllm_cluster.spec.source import Path_

if TYPE_CHECKING:
    from vllm_cluster.spec.checks import Parts

Finding = tuple[Path_, str, str]


def installs_known_hosts(parts: Parts) -> Iterator[Finding]:
    """A machine of the install section is a host of the cluster."""
    if parts.install is None or not parts.hosts_named:
        return
    known = ", ".join(sorted(parts.hosts_named))
    for name in sorted(set(parts.install.hosts) - parts.hosts_named):
        path = ("install", "hosts", name)
        yield path, f"{name!r}, which is not under hosts", f"one of {known}"


def cards_are_told_apart(parts: Parts) -> Iterator[Finding]:
    """A card is found by exactly one of mac and name; no MAC and no address is there twice."""
    seen: dict[str, Path_] = {}
    for path, machine in _machines(parts):
        for index, card in enumerate(machine.cards):
            here: Path_ = (*path, "cards", index)
            if (card.mac is None) == (card.name is None):
                found = "mac and name" if card.mac else "neither mac nor name"
                yield here, found, "one of mac and name"
            keys = [("mac", card.mac), ("address", str(card.address.ip))]
            keys += [("name", f"{card.name} of {path[-1]}" if card.name else None)]
            for key, value in keys:
                if value is None:
                    continue
                first = seen.setdefault(value, here)
                if first != here:
                    yield (*here, key), f"{value} again", f"a {key} of its own"


def cards_hold_the_addresses(parts: Parts) -> Iterator[Finding]:
    """After its installation a host must be where the cluster looks for it."""
    for path, machine in _machines(parts):
        host = parts.hosts.get(str(path[-1]))
        if host is None:
            continue
        held = {card.address.ip for card in machine.cards}
        if host.address not in held:
            accepted = f"a card with {host.address}, the address of the host"
            yield (*path, "cards"), ", ".join(sorted(map(str, held))), accepted
        try:
            dialled = IPv4Address(host.ssh or "")
        except AddressValueError:
            continue  # a name, whose address is not known here
        if dialled not in held:
            accepted = f"a card with {dialled}, the host's address for SSH"
            yield (*path, "cards"), ", ".join(sorted(map(str, held))), accepted


def gateways_are_reached(parts: Parts) -> Iterator[Finding]:
    """One default route, through a router in the network of its card."""
    for path, machine in _machines(parts):
        routed = [i for i, card in enumerate(machine.cards) if card.gateway]
        for index in routed:
            card = machine.cards[index]
            where = (*path, "cards", index, "gateway")
            if card.gateway not in card.address.network or card.gateway == card.address.ip:
                accepted = f"another address in {card.address.network}"
                yield where, str(card.gateway), accepted
            if index != routed[0]:
                yield where, "a second default route", "a gateway on one card alone"


def data_disks_stay(parts: Parts) -> Iterator[Finding]:
    """The disk of the system is none of those that hold data."""
    if parts.storage is None:
        return
    for path, machine in _machines(parts):
        for where, disk in parts.storage.disks.items():
            if disk.devices.get(str(path[-1])) == machine.disk:
                found = f"{machine.disk}, which storage.disks mounts at {where}"
                yield (*path, "disk"), found, "a disk that holds no data: it is wiped"


def _machines(parts: Parts) -> Iterator[tuple[Path_, Machine]]:
    if parts.install is not None:
        for name, machine in parts.install.hosts.items():
            yield ("install", "hosts", name), machine


CHECKS = (
    installs_known_hosts,
    cards_are_told_apart,
    cards_hold_the_addresses,
    gateways_are_reached,
    data_disks_stay,
)
