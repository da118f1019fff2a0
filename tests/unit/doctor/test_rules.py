"""nft rule sets: what stops a connection, and what takes it away."""

from __future__ import annotations

import pytest

from vllm_cluster.doctor.exec_line import arguments
from vllm_cluster.doctor.rules import Packet, blocking

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
    found = blocking(
        ruleset("ct state established,related accept", rule), Packet(HOSTS[1], [6379]), HOSTS
    )
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
    assert blocking(ruleset(rule), Packet(HOSTS[1], [6379]), HOSTS) is None


def test_a_chain_that_drops_by_default_lets_the_hosts_in() -> None:
    rules = ("ct state 0x2,0x4 accept", "tcp dport 22 accept", 'iifname "lo" accept')
    found = blocking(ruleset(*rules, policy="drop"), Packet(HOSTS[1], [6379]), HOSTS)
    assert found is not None
    assert found.fix == (
        "nft 'insert rule ip filter INPUT ip saddr { 10.77.0.11, 10.77.0.12 } accept'"
    )


def test_an_accept_before_the_drop_wins() -> None:
    text = ruleset("ip saddr 10.77.0.0/24 accept", "tcp dport 6379 drop", policy="drop")
    assert blocking(text, Packet(HOSTS[1], [6379]), HOSTS) is None


def test_a_jump_is_followed_to_the_rule_that_drops() -> None:
    text = ruleset("jump ufw-user").rstrip("}\n") + (
        "\n\t}\n\tchain ufw-user { # handle 7\n\t\ttcp dport 6379 drop # handle 8\n\t}\n}\n"
    )
    found = blocking(text, Packet(HOSTS[1], [6379]), HOSTS)
    assert found is not None
    assert found.fix == "nft delete rule ip filter ufw-user handle 8"


def test_our_own_table_is_the_deploys_matter() -> None:
    text = ruleset(policy="drop", table="inet vllm_cluster")
    assert blocking(text, Packet(HOSTS[1], [6379]), HOSTS) is None


UFW = """table ip6 filter { # handle 1
	chain INPUT { # handle 1
		type filter hook input priority filter; policy drop;
		counter packets 1 bytes 80 jump ufw6-before-input # handle 2
	}
}
table ip filter { # handle 2
	chain INPUT { # handle 1
		type filter hook input priority filter; policy drop;
		counter packets 9 bytes 800 jump ufw-before-input # handle 2
		counter packets 9 bytes 800 jump ufw-reject-input # handle 3
	}
	chain ufw-before-input { # handle 4
		iifname "lo" counter packets 0 bytes 0 accept # handle 5
		ct state 0x2,0x4 counter packets 0 bytes 0 accept # handle 6
		ct state 0x1 counter packets 0 bytes 0 drop # handle 7
		counter packets 0 bytes 0 jump ufw-not-local # handle 8
		ip daddr 224.0.0.251 udp dport 5353 counter packets 0 bytes 0 accept # handle 9
		counter packets 0 bytes 0 jump ufw-user-input # handle 10
	}
	chain ufw-not-local { # handle 11
		fib daddr type local counter packets 0 bytes 0 return # handle 12
		fib daddr type multicast counter packets 0 bytes 0 return # handle 13
		counter packets 0 bytes 0 drop # handle 14
	}
	chain ufw-user-input { # handle 15
		ip saddr 10.77.0.12 counter packets 0 bytes 0 accept # handle 16
	}
	chain ufw-reject-input { # handle 17
	}
}
"""


def test_of_ufws_chains_none_stops_what_its_rules_let_in() -> None:
    assert blocking(UFW, Packet(HOSTS[1], [6379], HOSTS[0], "fabric0"), HOSTS) is None
    shut = UFW.replace("ip saddr 10.77.0.12", "ip saddr 10.77.0.99")
    found = blocking(shut, Packet(HOSTS[1], [6379], HOSTS[0], "fabric0"), HOSTS)
    assert found is not None
    assert found.text == "table ip filter, chain INPUT: policy drop"


@pytest.mark.parametrize(
    ("rule", "stops"),
    [
        ("tcp dport 6379 reject with icmp host-prohibited", True),
        ("reject with icmpx admin-prohibited", True),
        ('iifname "wan0" drop', False),
        ('iifname { "wan0", "fab*" } drop', True),
        ('iifname != "fabric0" drop', False),
        ("ip daddr 172.17.0.0/16 drop", False),
        ("ip daddr 10.77.0.11 drop", True),
        ('tcp dport 22 drop comment "accept or drop 6379"', False),
    ],
)
def test_rules_for_another_card_or_address_stop_nothing(rule: str, *, stops: bool) -> None:
    found = blocking(ruleset(rule), Packet(HOSTS[1], [6379], HOSTS[0], "fabric0"), HOSTS)
    assert (found is not None) is stops


def test_an_exec_line_is_read_back_as_it_was_written() -> None:
    text = (
        '[Service]\nExecStart=/usr/bin/docker \\\n    run \\\n    "--a={\\"b\\":1}" \\\n    %%h\n'
    )
    assert arguments(text) == ["/usr/bin/docker", "run", '--a={"b":1}', "%h"]
