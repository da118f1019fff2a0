"""Addresses, links, MTU, names and ports between hosts. One fault a test."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, command, first, ids, sound
from vllm_cluster.facts.doctor.model import (
    Peer,
)


def test_an_address_that_no_card_holds() -> None:
    case = changed(sound(), "node-b", addresses={"127.0.0.1": "lo", "192.168.7.7": "eth0"})
    assert first(case).id == "network.address-missing"


def test_a_second_address_in_the_fabric() -> None:
    addresses = {**sound().facts["node-b"].addresses, "10.77.0.77": "eth1"}
    case = changed(sound(), "node-b", addresses=addresses)
    assert first(case).id == "network.second-address"
    assert command(case) == "ip address del 10.77.0.77/24 dev eth1"


def test_an_address_whose_end_would_cut_somebody_off_is_left_to_a_person() -> None:
    facts = sound().facts["node-b"]
    addresses = {"10.77.0.77": "fabric0", **facts.addresses}
    assert first(changed(sound(), "node-b", addresses=addresses)).fix[0].on == "by hand"
    last = {**facts.addresses, "10.77.0.77": "fabric0"}
    assert command(changed(sound(), "node-b", addresses=last)).startswith("ip address del")
    plan = sound().plan
    host = replace(plan.hosts["node-b"], ssh="10.77.0.77")
    case = replace(sound(), plan=replace(plan, hosts={**plan.hosts, "node-b": host}))
    case = changed(case, "node-b", addresses=last)
    assert "SSH comes in by 10.77.0.77" in command(case)


def test_the_smaller_mtu_of_two_is_the_odd_one() -> None:
    facts = sound().facts["node-a"]
    links = {**facts.links, "fabric0": replace(facts.links["fabric0"], mtu=9000)}
    case = changed(sound(), "node-a", links=links)
    assert first(case).id == "network.mtu"
    assert first(case).host == "node-b"
    assert command(case) == "ip link set dev fabric0 mtu 9000"


def test_a_path_that_carries_less_than_the_cards() -> None:
    facts = sound().facts["node-a"]
    peers = {"node-b": replace(facts.peers["node-b"], ping="small", mtu=9000)}
    case = changed(sound(), "node-a", peers=peers)
    assert first(case).id == "network.mtu"
    assert "only small ones arrive" in first(case).found
    assert [(step.on, step.command.split()[-1]) for step in first(case).fix] == [
        ("node-a", "1500"), ("node-b", "1500")
    ]  # fmt: skip
    peers = {"node-b": replace(facts.peers["node-b"], ping="small", mtu=1500)}
    assert first(changed(sound(), "node-a", peers=peers)).fix[0].on == "by hand"


def test_a_rule_that_says_no_route_is_a_rule() -> None:
    peer = sound().facts["node-a"].peers["node-b"]
    ports = {**peer.ports, 47991: "No route to host"}
    case = changed(sound(), "node-a", peers={"node-b": replace(peer, ports=ports)})
    assert first(case).id == "network.port-blocked"


@pytest.mark.parametrize(("since_s", "told"), [(5, False), (90, True)])
def test_ray_that_began_to_listen_after_it_was_dialled_is_behind_no_rule(
    since_s: float, *, told: bool
) -> None:
    peer, there = sound().facts["node-a"].peers["node-b"], sound().facts["node-b"]
    unit = there.unit("ray-worker.service")
    unit = replace(unit, changed_s=there.clock_s - since_s)
    port = next(listener.port for listener in there.listeners if listener.port in peer.ports)
    refused = replace(peer, ports={**peer.ports, port: "Connection refused"})
    case = changed(sound(), "node-b", units={**there.units, unit.name: unit})
    case = changed(case, "node-a", peers={"node-b": refused})
    assert ("network.port-blocked" in ids(case)) is told


def test_a_link_without_a_cable() -> None:
    facts = sound().facts["node-b"]
    link = replace(facts.links["fabric0"], flags=frozenset({"UP", "NO-CARRIER"}))
    case = changed(sound(), "node-b", links={**facts.links, "fabric0": link})
    assert first(case).id == "network.link-down"


def test_a_name_that_leads_to_loopback() -> None:
    facts = sound().facts["node-b"]
    names = {**facts.names, "node-b": ("127.0.1.1",)}
    case = changed(sound(), "node-b", names=names)
    assert first(case).id == "network.name"
    assert command(case) == case.deploy


def test_a_foreign_line_in_the_hosts_file_is_taken_out_by_its_number() -> None:
    facts = sound().facts["node-a"]
    text = "10.1.1.1 node-b\n" + facts.contents["/etc/hosts"]
    case = changed(
        sound(), "node-a", names={**facts.names, "node-b": ("10.1.1.1",)},
        contents={**facts.contents, "/etc/hosts": text},
    )  # fmt: skip
    assert command(case) == "sed -i '1d' /etc/hosts"


def test_a_foreign_line_keeps_the_other_names_that_it_gives() -> None:
    facts = sound().facts["node-a"]
    text = "10.1.1.1 node-b db node-b # old\n" + facts.contents["/etc/hosts"]
    case = changed(
        sound(), "node-a", names={**facts.names, "node-b": ("10.1.1.1",)},
        contents={**facts.contents, "/etc/hosts": text},
    )  # fmt: skip
    words = shlex.split(command(case))
    done = subprocess.run(["sed", words[2]], input=text, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "10.1.1.1 db # old"


def test_a_peer_that_nothing_reaches() -> None:
    peer = Peer("node-b", "fabric0", ping="none", ports={6380: "dropped", 47991: "dropped"})
    case = changed(sound(), "node-a", peers={"node-b": peer})
    assert first(case).id == "network.peer-unreachable"
