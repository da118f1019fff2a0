"""A host's names: what it calls itself stays, what contradicts the description is found."""

from __future__ import annotations

import base64

from vllm_cluster.facts.names import NamesFact
from vllm_cluster.plan.hosts_file import BEGIN, END, contradictions, hosts_text, own_aliases

ADDRESSES = {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}


def test_a_name_that_the_host_has_beside_ours_stays_and_its_fqdn_comes_first() -> None:
    aliases = own_aliases("node-a", ["node-a", "ip-10-0-0-1.ec2.internal", "ip-10-0-0-1"])
    old = "127.0.0.1 localhost\n127.0.1.1 ip-10-0-0-1.ec2.internal ip-10-0-0-1\n"
    own = {"node-a", *aliases}
    text = hosts_text(old, own, ADDRESSES, {"node-a": aliases})
    assert text == (
        f"127.0.0.1 localhost\n{BEGIN}\n"
        "10.0.0.1\tip-10-0-0-1.ec2.internal ip-10-0-0-1 node-a\n10.0.0.2\tnode-b\n"
        f"{END}\n"
    )
    assert hosts_text(text, own, ADDRESSES, {"node-a": aliases}) == text


def test_localhost_is_no_name_of_a_host() -> None:
    assert own_aliases("node-a", ["node-a", "localhost.localdomain", "localhost", ""]) == []


def test_names_of_localhost_stay_on_loopback() -> None:
    old = "127.0.0.1 localhost.localdomain localhost\n"
    own = {"node-a", "localhost.localdomain"}
    assert hosts_text(old, own, ADDRESSES).startswith(old)


def test_a_line_of_the_users_with_another_address_is_found_by_its_number() -> None:
    old = f"127.0.1.1 node-a\n{BEGIN}\n9.9.9.9\tnode-b\n{END}\n10.0.0.9 printer node-b # old\n"
    assert contradictions(old, ADDRESSES) == ["line 5 says that node-b is 10.0.0.9"]


def test_a_line_that_says_the_same_is_none() -> None:
    assert contradictions("10.0.0.2 node-b node-b.lan\n::1 node-a\n", ADDRESSES) == []


def test_names_are_read_from_one_answer() -> None:
    hosts = base64.b64encode(b"127.0.0.1 localhost\n").decode()
    state = NamesFact().process([
        "hostname ip-10-0-0-1", "fqdn ", "address 127.0.0.1", "address 10.0.0.1",
        "resolves node-a 127.0.1.1 ", "resolves node-b ", f"hosts {hosts}",
        "cloud /etc/cloud/cloud.cfg", "cloud /etc/cloud/cloud.cfg",
        "cloud /etc/cloud/cloud.cfg.d/zz-vllm-cluster.cfg",
        "cloud /var/lib/cloud/instance/cloud-config.txt",
    ])  # fmt: skip
    assert state.addresses == ("127.0.0.1", "10.0.0.1")
    assert state.resolves == {"node-a": ("127.0.1.1",), "node-b": ()}
    assert state.hosts_file == b"127.0.0.1 localhost\n"
    assert state.cloud == ("/etc/cloud/cloud.cfg", "/var/lib/cloud/instance/cloud-config.txt")
    assert state.instance_data == ("/var/lib/cloud/instance/cloud-config.txt",)
