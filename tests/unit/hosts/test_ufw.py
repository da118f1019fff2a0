"""ufw's rules: read as it prints them, added and removed without touching the user's."""

from __future__ import annotations

import pytest

from vllm_cluster.plan import Allow
from vllm_cluster.plan.ufw import UfwRule, changes, obstacle, parse

ALLOW = (
    Allow("hosts of the cluster reach every port", ("10.0.0.1", "10.0.0.2")),
    Allow("SSH", ("0.0.0.0/0",), (22, 2222)),
    Allow("API", ("10.0.0.0/8", "192.0.2.7/32"), (8000,)),
)
# As ufw 0.36.2 of Debian 12 prints what the lines below add.
ADDED = [
    "ufw allow 22/tcp comment 'mine'",
    "ufw allow from 10.0.0.1 comment 'vllm-cluster: hosts of the cluster reach every port'",
    "ufw allow from 10.0.0.2 comment 'vllm-cluster: hosts of the cluster reach every port'",
    "ufw allow 22,2222/tcp comment 'vllm-cluster: SSH'",
    "ufw allow from 10.0.0.0/8 to any port 8000 proto tcp comment 'vllm-cluster: API'",
    "ufw allow from 192.0.2.7 to any port 8000 proto tcp comment 'vllm-cluster: API'",
]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("ufw allow 22/tcp", UfwRule("any", (22,))),
        ("ufw allow in from 10.0.0.1", UfwRule("10.0.0.1", ())),
        ("ufw allow from 10.0.0.0/8 to any port 80,81 proto tcp", UfwRule("10.0.0.0/8", (80, 81))),
    ],
)
def test_rules_are_read_as_ufw_prints_them(line: str, rule: UfwRule) -> None:
    assert parse(line) == (rule, "")


@pytest.mark.parametrize(
    "line",
    [
        "ufw deny 22/tcp",
        "ufw reject log 22/tcp",
        "ufw allow OpenSSH",
        "ufw allow 53/udp",
        "ufw allow 6000:6007/tcp",
        "ufw allow from 10.0.0.1 comment 'an odd quote",
    ],
)
def test_rules_of_other_kinds_are_nobodys_here(line: str) -> None:
    assert parse(line) is None


SSH = (Allow("SSH", ("0.0.0.0/0",), (22,)),)


@pytest.mark.parametrize("action", ["limit", "limit log", "allow log", "allow log-all"])
def test_a_limit_or_a_log_of_the_users_is_not_replaced(action: str) -> None:
    for line in (f"ufw {action} 22/tcp", f"ufw {action} 22/tcp comment 'vllm-cluster: SSH'"):
        assert changes([line], SSH) == []
        assert changes([line], ()) == []
        assert obstacle([line], SSH) == ""


@pytest.mark.parametrize("action", ["deny", "reject", "deny log"])
def test_a_rule_that_keeps_the_same_out_is_refused_with_its_fix(action: str) -> None:
    line = f"ufw {action} 22/tcp comment 'not from outside'"
    words = obstacle([line], SSH)
    assert f"`{line}`" in words
    assert f"`ufw delete {action} from any to any port 22 proto tcp`" in words
    assert obstacle([f"ufw {action} 23/tcp", "ufw deny OpenSSH", "hello"], SSH) == ""


def test_what_is_missing_is_added_with_our_mark() -> None:
    assert changes([], ALLOW) == [
        "allow from 10.0.0.1 comment 'vllm-cluster: hosts of the cluster reach every port'",
        "allow from 10.0.0.2 comment 'vllm-cluster: hosts of the cluster reach every port'",
        "allow from any to any port 22,2222 proto tcp comment 'vllm-cluster: SSH'",
        "allow from 10.0.0.0/8 to any port 8000 proto tcp comment 'vllm-cluster: API'",
        "allow from 192.0.2.7 to any port 8000 proto tcp comment 'vllm-cluster: API'",
    ]


def test_a_second_time_changes_nothing() -> None:
    assert changes(ADDED, ALLOW) == []


def test_what_is_ours_and_not_wanted_goes_after_what_is_new_came() -> None:
    moved = (*ALLOW[:2], Allow("API", ("198.51.100.0/24",), (8000,)))
    assert changes(ADDED, moved) == [
        "allow from 198.51.100.0/24 to any port 8000 proto tcp comment 'vllm-cluster: API'",
        "delete allow from 10.0.0.0/8 to any port 8000 proto tcp",
        "delete allow from 192.0.2.7 to any port 8000 proto tcp",
    ]


def test_a_rule_of_the_users_that_says_the_same_stays_the_users() -> None:
    mine = ["ufw allow from 10.0.0.0/8 to any port 8000 proto tcp comment 'mine'"]
    one = (Allow("API", ("10.0.0.0/8",), (8000,)),)
    assert changes(mine, one) == []
    assert changes(mine, ()) == []


def test_many_ports_become_rules_that_iptables_takes() -> None:
    many = (Allow("metrics", ("10.0.0.1",), tuple(range(100, 120))),)
    assert [line.split()[6].count(",") + 1 for line in changes([], many)] == [15, 5]
