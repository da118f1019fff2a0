"""What answers from outside, and how it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.doctor.cases import changed, sound
from vllm_cluster.doctor import exposure
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.exposure import Dialled
from vllm_cluster.doctor.finding import BY_HAND, Finding
from vllm_cluster.facts.doctor.model import Container, Holder


def test_what_answers_a_stranger_is_exposed_and_the_api_to_its_networks_is_not() -> None:
    plan = sound().plan
    answers = {
        ("node-a", 8000): Dialled(True, "10.77.0.1"),
        ("node-a", 8265): Dialled(True, "10.77.0.1", "HTTP/1.1 200 OK"),
        ("node-b", 6380): Dialled(True, "10.77.0.1"),
    }
    found = {f.host: f for f in exposure.findings(plan, answers)}
    assert set(found) == {"node-a", "node-b"}
    assert "ray dashboard (8265)" in found["node-a"].found
    assert "without a token" in found["node-a"].found
    assert "vllm api" not in found["node-a"].found


def test_the_address_that_ssh_uses_is_dialled_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        plan = sound().plan
        use = next(use for use in plan.ports if use.name == "ray gcs")
        host = replace(plan.hosts["node-a"], address="127.0.0.2", ssh="localhost")
        plan = replace(plan, hosts={"node-a": host}, ports=(replace(use, first=port, last=port),))
        found = exposure.dial_all(plan)["node-a", port]
    assert found.open
    assert found.address == "127.0.0.1"


@pytest.mark.parametrize(
    ("sent", "first"),
    [(b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n", "HTTP/1.0 200 OK"), (b"x" * 200_000, "x" * 256),
     (b"\x1b]0;title\x07\n", "]0;title"), (b"", "")],
)  # fmt: skip
def test_whatever_listens_is_heard_for_one_short_line(sent: bytes, first: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection = server.accept()[0]
            with connection, contextlib.suppress(OSError):
                connection.recv(100)
                connection.sendall(sent)

        teller = threading.Thread(target=answer)
        teller.start()
        plan = sound().plan
        use = next(use for use in plan.ports if use.name == "ray dashboard")
        port = server.getsockname()[1]
        found = asyncio.run(exposure._dial("127.0.0.1", replace(use, first=port, last=port)))
        teller.join()
    assert (found.open, found.http) == (True, first)


def test_a_proxy_that_takes_every_connection_is_no_open_port() -> None:
    answers = {
        ("node-a", 47991): Dialled(True, "10.77.0.1"),
        ("node-a", 6379): Dialled(True, "10.77.0.1"),
    }
    assert list(exposure.findings(sound().plan, answers)) == []
    assert not exposure.looked(answers)
    answers[("node-a", 1)] = answers.pop(("node-a", 47991))
    assert list(exposure.findings(sound().plan, answers)) == []


def test_a_firewall_that_is_off_is_why_ports_answer() -> None:
    shut = changed(sound(), "node-a", nft="")
    answers = {("node-a", 6379): Dialled(True, "192.0.2.7")}
    rows = ordered([*findings(shut), *exposure.findings(shut.plan, answers)])
    assert [(f.id, why.id if why else None) for f, why in rows] == [
        ("security.firewall", None), ("security.exposed", "security.firewall")
    ]  # fmt: skip


def test_a_host_behind_a_proxy_command_is_not_dialled(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host node-a\n    ProxyCommand nc %h %p\n")
    assert not exposure.direct(["ssh", "-F", str(config), "node-a"])
    config.write_text("Host node-a\n    User root\n")
    assert exposure.direct(["ssh", "-F", str(config), "node-a"])


def test_a_host_of_the_cluster_may_reach_everything() -> None:
    answers = {("node-a", 6379): Dialled(True, "10.77.0.12")}
    assert list(exposure.findings(sound().plan, answers)) == []


def test_the_api_from_a_network_that_may_not_use_it() -> None:
    answers = {("node-a", 8000): Dialled(True, "192.168.9.9")}
    assert [f.id for f in exposure.findings(sound().plan, answers)] == ["security.exposed"]


def test_an_api_without_a_key_on_the_internet() -> None:
    plan = sound().plan
    head = plan.hosts["node-a"]
    allow = tuple(
        replace(rule, sources=("0.0.0.0/0",)) if plan.api_port in rule.ports else rule
        for rule in head.allow
    )
    hosts = {**plan.hosts, "node-a": replace(head, allow=allow)}
    wide = replace(plan, hosts=hosts, api_key=False)
    assert [f.id for f in exposure.keyless(wide, "x.yaml", "pyinfra x")] == ["security.keyless"]
    assert list(exposure.keyless(replace(wide, api_key=True), "x.yaml", "")) == []
    edit, deploy = next(exposure.keyless(wide, "x.yaml", "pyinfra x")).fix
    assert (edit.on, deploy.command) == (BY_HAND, "pyinfra x")
    assert edit.command == "In x.yaml, secrets.api_key: generate in place of none"


STRANGER = {("node-a", 6379): Dialled(True, "192.0.2.7", address="10.77.0.11")}


def exposed(**changes: Any) -> Finding:
    """What is said of node-a with these facts, whose GCS answers a stranger."""
    case = changed(sound(), "node-a", **changes)
    return next(exposure.findings(case.plan, STRANGER, case))


def ufw_holds(*rules: str, default: str = "deny") -> Finding:
    """The same where ufw holds the firewall."""
    state = ("Status: active", f"Default: {default} (incoming), allow (outgoing)")
    return exposed(nft="", holder=Holder("ufw", state, rules))


def test_the_fix_of_an_open_port_is_that_of_whatever_holds_the_firewall() -> None:
    assert exposed(nft="").fix[0].command == "systemctl restart vllm-cluster-firewall.service"
    found = ufw_holds("ufw allow 22/tcp", "ufw allow 6379/tcp comment 'mine'")
    assert found.fix[0].command == "ufw delete allow from any to any port 6379 proto tcp"
    assert found.evidence.endswith("; ufw allow 6379/tcp comment 'mine'")
    assert ufw_holds(default="allow").fix[0].command == "ufw default deny incoming"
    by_hand = ufw_holds("ufw allow 6000:7000/tcp")
    assert by_hand.fix[0].on == BY_HAND
    assert "ufw status numbered" in by_hand.fix[0].command
    zone = exposed(nft="", holder=Holder("firewalld"))
    assert "firewall-cmd --list-all-zones" in zone.fix[0].command


def test_a_rule_that_somebody_put_into_our_table_is_named_and_goes_with_a_restart() -> None:
    nft = sound().facts["node-a"].nft
    chain = next(line for line in nft.splitlines() if "type filter hook input" in line)
    assert exposed().fix[0].on == BY_HAND
    found = exposed(nft=nft.replace(chain, f"{chain}\n\t\ttcp dport 6379 accept # handle 99"))
    assert "chain input: tcp dport 6379 accept" in found.evidence
    assert found.fix[0].command == "systemctl restart vllm-cluster-firewall.service"


def test_a_published_port_goes_with_its_container_and_a_host_unseen_is_mended_by_hand() -> None:
    docker = sound().facts["node-a"].docker
    web = Container("web", running=True, published=("0.0.0.0:6379",))
    found = exposed(docker=replace(docker, containers={"web": web}))
    assert found.fix[0].command == "docker stop web"
    assert next(exposure.findings(sound().plan, STRANGER)).fix[0].on == BY_HAND


def test_behind_a_nat_the_api_that_answers_may_well_be_permitted() -> None:
    plan = sound().plan
    answer = Dialled(True, "192.168.9.9", address="8.8.8.8")
    found = list(exposure.findings(plan, {("node-a", 8000): answer}))
    assert [(f.id, f.severity) for f in found] == [("security.exposed", "warning")]
    found = list(exposure.findings(plan, {("node-a", 8000): answer, ("node-a", 6379): answer}))
    assert [f.severity for f in found] == ["failing"]
    assert "vllm api" not in found[0].found


def test_ssh_is_dialled_at_the_descriptions_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host = replace(sound().plan.hosts["node-a"], address="127.0.0.1", ssh="127.0.0.1")
        answers = exposure.dial_all(replace(sound().plan, hosts={"node-a": host}, ports=()), port)
    assert answers["node-a", port].open
    assert exposure.looked(answers)
