"""The fabric: addresses on cards, one address a host, MTU, and nothing in between that drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks.ray_starting import ray_unit
from vllm_cluster.doctor.finding import Finding, Step, by_hand, on
from vllm_cluster.doctor.rules import Blocking, Packet, blocking
from vllm_cluster.doctor.starting import lately
from vllm_cluster.facts.doctor.model import HostFacts, Peer
from vllm_cluster.facts.doctor.script import UNUSED_PORT, peer_ports
from vllm_cluster.plan import HostPlan


def card_of(host: HostPlan, facts: HostFacts) -> str:
    """The card that holds the host's fabric address; empty where none does."""
    return facts.addresses.get(host.address, "")


def addresses(case: Case) -> Iterator[Finding]:
    """The planned address, on the planned card, with a cable."""
    for host, facts in case.seen():
        card = card_of(host, facts)
        if not card:
            yield _missing(case, host, facts)
            continue
        if host.interface and host.interface != card:
            yield Finding(
                "network.interface", "network", host.name,
                expected=f"{host.address} on {host.interface}, as {case.description} says",
                found=f"it is on {card}",
                evidence=f"ip address: {host.address} {card}",
                fix=by_hand(f"In {case.description}, hosts.{host.name}.interface: {card}"),
            )  # fmt: skip
        link = facts.links.get(card)
        if link is not None and "UP" in link.flags and "LOWER_UP" not in link.flags:
            yield Finding(
                "network.link-down", "network", host.name,
                expected=f"a link on {card}",
                found="no carrier: cable, transceiver or the switch's port",
                evidence=f"{card}: <{','.join(sorted(link.flags))}>",
                fix=by_hand(f"Plug the cable of {card} on {host.name} in"),
            )  # fmt: skip
        elif link is not None and "UP" not in link.flags:
            yield Finding(
                "network.link-down", "network", host.name,
                expected=f"{card} switched on",
                found="it is down",
                evidence=f"{card}: <{','.join(sorted(link.flags))}>",
                fix=on(host.name, f"ip link set dev {card} up"),
            )  # fmt: skip


def _missing(case: Case, host: HostPlan, facts: HostFacts) -> Finding:
    others = {a: c for a, c in facts.addresses.items() if IPv4Address(a) in case.fabric}
    held = ", ".join(f"{a} on {c}" for a, c in facts.addresses.items() if c != "lo") or "none"
    fix: tuple[Step, ...]
    if len(others) == 1:
        fix = by_hand(f"In {case.description}, hosts.{host.name}.address: {next(iter(others))}")
    elif host.interface:
        prefix = case.fabric.prefixlen
        fix = on(host.name, f"ip address add {host.address}/{prefix} dev {host.interface}")
    else:
        fix = by_hand(f"Give {host.name} the address {host.address}, or mend {case.description}")
    return Finding(
        "network.address-missing", "network", host.name,
        expected=f"{host.address} on a card of this host",
        found=f"the host has {held}",
        evidence=f"ip -4 address show: {held}",
        fix=fix,
    )  # fmt: skip


def second_address(case: Case) -> Iterator[Finding]:
    """One address in the fabric's network: gloo and Ray may pick the other one.

    With two cards in one network, answers leave by the wrong one
    (https://github.com/vllm-project/vllm/issues/7815).
    """
    planned = {host.address for host in case.plan.hosts.values()}
    for host, facts in case.seen():
        card = card_of(host, facts)
        for address, other in facts.addresses.items():
            if address == host.address or not card or other == "lo":
                continue
            if IPv4Address(address) in case.fabric:
                also = " (the plan gives it to another host)" if address in planned else ""
                prefix = facts.prefixes.get(address, case.fabric.prefixlen)
                yield Finding(
                    "network.second-address", "network", host.name,
                    expected=f"{host.address} alone in {case.fabric}",
                    found=f"{address} as well, on {other}{also}",
                    evidence=f"ip -4 address show: {address}/{prefix} {other}",
                    fix=_remove(host, card, facts, address)
                    or on(host.name, f"ip address del {address}/{prefix} dev {other}"),
                )  # fmt: skip


def _remove(host: HostPlan, card: str, facts: HostFacts, address: str) -> tuple[Step, ...]:
    """What a person does where the command would cut somebody off; empty where it would not."""
    config = f"in the network's configuration of {host.name}"
    if address == host.ssh:
        return by_hand(f"SSH comes in by {address}: take it away {config}, from the console")
    order = list(facts.addresses)
    # With the first address of a network on a card its others go too (promote_secondaries).
    if facts.addresses[address] == card and order.index(address) < order.index(host.address):
        return by_hand(f"{address} is the first address of {card}, and with it the kernel may "
                       f"take {host.address}: take it away {config}")  # fmt: skip
    return ()


def mtu(case: Case) -> Iterator[Finding]:
    """One MTU on all cards of the fabric, and a path that carries it."""
    sizes = {
        host.name: facts.links[card].mtu
        for host, facts in case.seen()
        if (card := card_of(host, facts)) in facts.links
    }
    if len(set(sizes.values())) > 1:
        counts = Counter(sizes.values())
        # The majority is right; where there is none, the larger: it was set on purpose.
        usual = max(counts, key=lambda size: (counts[size], size))
        for name, size in sizes.items():
            if size != usual:
                card = card_of(case.plan.hosts[name], case.facts[name])
                yield Finding(
                    "network.mtu", "network", name,
                    expected=f"MTU {usual} on {card}, as on the other hosts",
                    found=f"MTU {size}",
                    evidence=f"ip link show {card}: mtu {size}",
                    fix=on(name, f"ip link set dev {card} mtu {usual}"),
                    about=tuple(other for other in sizes if other != name),
                )  # fmt: skip
        return
    for host, facts in case.seen():
        for peer in facts.peers.values():
            if peer.ping == "small":
                yield Finding(
                    "network.mtu", "network", host.name,
                    expected=f"packets of {peer.mtu} bytes from {host.name} to {peer.name}, whole",
                    found="only small ones arrive: the switch between them carries less",
                    evidence=f"ping -M do -s {peer.mtu - 28}: no answer",
                    fix=_smaller(case, peer.mtu),
                    about=(peer.name,),
                )  # fmt: skip
                break


def _smaller(case: Case, mtu: int) -> tuple[Step, ...]:
    """All cards of the fabric at once: unequal ones would be the next fault."""
    if mtu <= _ETHERNET_MTU:
        return by_hand(f"Make what lies between the hosts carry {mtu} bytes, or set all cards of "
                       f"the fabric to what `vllm-cluster doctor network {case.description}` says "
                       "that the path carries")  # fmt: skip
    return tuple(
        Step(host.name, f"ip link set dev {card} mtu {_ETHERNET_MTU}")
        for host, facts in case.seen() if (card := card_of(host, facts))
    )  # fmt: skip


def peers(case: Case) -> Iterator[Finding]:
    """Every host reaches every other, on the ports that matter and on those in between."""
    for host, facts in case.seen():
        for peer in facts.peers.values():
            if peer.name not in case.plan.hosts or not peer.ports:
                continue
            if not peer.reached:
                yield _unreached(case, host, peer)
            else:
                yield from _blocked(case, host, peer)


def _unreached(case: Case, host: HostPlan, peer: Peer) -> Finding:
    address = case.plan.hosts[peer.name].address
    rule = _rule(case, peer.name, host, [*peer.ports])
    if rule is not None:
        return Finding(
            "network.port-blocked", "network", peer.name,
            expected=f"{host.name} reaches {peer.name} ({address})",
            found=f"a rule of {peer.name}'s firewall drops everything",
            evidence=rule.text,
            fix=on(peer.name, rule.fix),
            about=(host.name,),
        )  # fmt: skip
    return Finding(
        "network.peer-unreachable", "network", host.name,
        expected=f"{host.name} reaches {peer.name} ({address}) over {peer.device or 'the fabric'}",
        found="nothing comes back",
        evidence=peer.words or f"connect {address}: no answer",
        fix=by_hand(f"Mend the way from {host.name} to {peer.name}: cable, switch, VLAN, address"),
        about=(peer.name,),
    )  # fmt: skip


def _blocked(case: Case, host: HostPlan, peer: Peer) -> Iterator[Finding]:
    there = case.facts.get(peer.name)
    listening = {listener.port for listener in there.listeners} if there else set()
    # The hosts look at different moments: Ray may listen now, and not yet when it was dialled.
    if there and lately(there, ray_unit(case.plan.hosts[peer.name], there).changed_s):
        listening = set()
    for port in peer_ports(case.plan, case.plan.hosts[peer.name]):
        words = peer.ports.get(port, "open")
        # A host that is reached, and to which there is "no route": a rule says so.
        refused = words != "open" and (port in listening or words in _REJECTED)
        if words != "dropped" and not refused:
            continue
        rule = _rule(case, peer.name, host, [port])
        what = "the data plane's ports" if port == UNUSED_PORT else f"port {port}"
        yield Finding(
            "network.port-blocked", "network", peer.name,
            expected=f"{host.name} reaches {what} of {peer.name}",
            found="packets are dropped" if words == "dropped" else f"refused: {words}",
            evidence=rule.text if rule else f"connect to {peer.name}:{port}: {words}",
            fix=on(peer.name, rule.fix) if rule else case.run_deploy(),
            about=(host.name,),
        )  # fmt: skip
        return  # one rule, one finding


_ETHERNET_MTU = 1500
# Of "reject with icmp host-prohibited", admin-prohibited and their like.
_REJECTED = {"No route to host", "Network is unreachable", "Permission denied"}


def _rule(case: Case, name: str, source: HostPlan, ports: list[int]) -> Blocking | None:
    facts = case.facts.get(name)
    if facts is None:
        return None
    hosts = [host.address for host in case.plan.hosts.values()]
    there = case.plan.hosts[name]
    packet = Packet(source.address, ports, there.address, card_of(there, facts))
    return blocking(facts.nft, packet, hosts)


CHECKS = (addresses, second_address, mtu, peers)
