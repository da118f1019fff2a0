"""nft rule sets: what stops a connection, and what takes it away."""

from __future__ import annotations

import pytest

from vllm_cluster.doctor.exec_line import arguments
from vllm_cluster.doctor.rules import blocking

HOSTS = ["10.77.0.11", "10.77.0.12"]


def ruleset(*rules: str, policy: str = "accept", table: str = "ip filter") -> str:
    """`nft -a list ruleset` with one input chain."""
    body = "\n".join(f"\t\t{rule} # handle {number}" for number, rule in enumerate(rules, 2))
    head = f"type filter hook input priority 0; policy {policy};"
    return (
        f"table {table} {{ # handle 9\n\tchain INPUT {{ # handle 1\n\t\t{head}\n{body}\n\t}}\n}}\n"
    )


@pytest.mark.parametrize(
    "rule",
    [
        "tcp dport 6379 drop",
        "tcp dport { 22, 6379 } counter packets 3 bytes 180 drop",
        "tcp dport 6000-7000 reject with tcp reset",
        "ip saddr 10.77.0.0/24 tcp dport 6379 drop",
        "ip saddr 10.77.0.11-10.77.0.20 drop",
        "tcp dport != 22 drop",
        'iifname "fabric0" tcp dport 6379 ct state new drop',
        "tcp dport 6379 ct state 0x8 drop",
    ],
)
def test_a_rule_that_stops_the_connection_is_deleted_by_its_handle(rule: str) -> None:
    found = blocking(ruleset("ct state established,related accept", rule), HOSTS[1], [6379], HOSTS)
    assert found is not None
    assert found.fix == "nft delete rule ip filter INPUT handle 3"


@pytest.mark.parametrize(
    "rule",
    [
        "tcp dport 6380 drop",
        "udp dport 6379 drop",
        "ip saddr 192.168.0.0/16 drop",
        "tcp sport 6379 drop",
        'tcp dport 22 drop comment "not 6379"',
        "ct state invalid drop",
        "ct state 0x1 drop",
        "ct state 0x2,0x4 drop",
    ],
)
def test_rules_about_other_packets_stop_nothing(rule: str) -> None:
    assert blocking(ruleset(rule), HOSTS[1], [6379], HOSTS) is None


def test_a_chain_that_drops_by_default_lets_the_hosts_in() -> None:
    rules = ("ct state 0x2,0x4 accept", "tcp dport 22 accept", 'iifname "lo" accept')
    found = blocking(ruleset(*rules, policy="drop"), HOSTS[1], [6379], HOSTS)
    assert found is not None
    assert found.fix == (
        "nft 'insert rule ip filter INPUT ip saddr { 10.77.0.11, 10.77.0.12 } accept'"
    )


def test_an_accept_before_the_drop_wins() -> None:
    text = ruleset("ip saddr 10.77.0.0/24 accept", "tcp dport 6379 drop", policy="drop")
    assert blocking(text, HOSTS[1], [6379], HOSTS) is None


def test_a_jump_is_followed_to_the_rule_that_drops() -> None:
    text = ruleset("jump ufw-user").rstrip("}\n") + (
        "\n\t}\n\tchain ufw-user { # handle 7\n\t\ttcp dport 6379 drop # handle 8\n\t}\n}\n"
    )
    found = blocking(text, HOSTS[1], [6379], HOSTS)
    assert found is not None
    assert found.fix == "nft delete rule ip filter ufw-user handle 8"


def test_our_own_table_is_the_deploys_matter() -> None:
    text = ruleset(policy="drop", table="inet vllm_cluster")
    assert blocking(text, HOSTS[1], [6379], HOSTS) is None


def test_an_exec_line_is_read_back_as_it_was_written() -> None:
    text = (
        '[Service]\nExecStart=/usr/bin/docker \\\n    run \\\n    "--a={\\"b\\":1}" \\\n    %%h\n'
    )
    assert arguments(text) == ["/usr/bin/docker", "run", '--a={"b":1}', "%h"]
