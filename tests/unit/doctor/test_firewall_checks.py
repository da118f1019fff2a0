"""The firewall as doctor sees it, through whatever holds it."""

from __future__ import annotations

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.facts.doctor.model import Holder
from vllm_cluster.facts.doctor.read_network import holder
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan import ufw

ACTIVE = ("Status: active", "Default: deny (incoming), allow (outgoing), deny (routed)")
POLICY = (
    'rule family="ipv4" source address="10.77.0.11" accept',
    'rule family="ipv4" source address="10.77.0.12" accept',
    'rule port port="22" protocol="tcp" accept',
)


def held(*rules: str, state: tuple[str, ...] = ACTIVE, name: str = "ufw") -> Case:
    """node-b, where another tool holds the firewall and our table is not there."""
    return changed(sound(), "node-b", nft="", holder=Holder(name, state, rules))


def planned() -> list[str]:
    """What the deploy gives to ufw on node-b."""
    allow = sound().plan.hosts["node-b"].allow
    return [f"ufw {rule.arguments(comment)}" for rule, comment in ufw.wanted(allow).items()]


def test_rules_and_state_are_told_apart() -> None:
    said = f"{MARK} holder\nufw\n{ACTIVE[0]}\n{ACTIVE[1]}\nufw allow 22/tcp\n{MARK} end\n"
    assert holder(Sections(said)) == Holder("ufw", ACTIVE, ("ufw allow 22/tcp",))
    assert holder(Sections(f"{MARK} holder\n{MARK} end\n")) == Holder()


def test_ufw_with_the_clusters_rules_is_sound() -> None:
    assert ids(held(*planned(), "ufw allow 9100/tcp comment 'mine'")) == []


def test_more_ports_for_ssh_and_wider_rules_of_the_users_are_sound_too() -> None:
    rules = [line.replace("port 22 ", "port 22,2222 ") for line in planned()]
    assert ids(held(*rules)) == []


@pytest.mark.parametrize("gone", range(len(planned())))
def test_each_rule_that_ufw_lacks_is_added_by_the_fix(gone: int) -> None:
    rules = planned()
    missing = rules.pop(gone)
    found = first(held(*rules))
    assert (found.id, found.host) == ("security.firewall-rule", "node-b")
    assert found.fix[0].command == missing


def test_a_rule_of_ours_that_is_not_planned_any_more_is_deleted() -> None:
    old = "ufw allow from 192.0.2.0/24 to any port 8000 proto tcp comment 'vllm-cluster: API'"
    found = first(held(*planned(), old))
    assert found.id == "security.firewall"
    assert found.fix[0].command == \
        "ufw delete allow from 192.0.2.0/24 to any port 8000 proto tcp"  # fmt: skip


@pytest.mark.parametrize(
    ("state", "fix"),
    [(("Status: inactive",), "ufw --force enable"),
     (("Status: active", "Default: allow (incoming)"), "ufw default deny incoming")],
)  # fmt: skip
def test_ufw_that_is_not_closed(state: tuple[str, ...], fix: str) -> None:
    found = first(held(*planned(), state=state))
    assert found.id == "security.firewall"
    assert found.fix[0].command == fix


def test_firewalld_with_the_clusters_policy_is_sound() -> None:
    assert ids(held(*POLICY, name="firewalld")) == []


@pytest.mark.parametrize("gone", range(len(POLICY)))
def test_each_rule_that_firewalld_lacks_is_told(gone: int) -> None:
    rules = [rule for number, rule in enumerate(POLICY) if number != gone]
    found = first(held(*rules, name="firewalld"))
    assert found.id == "security.firewall-rule"
    assert found.fix[0].command == "firewall-cmd --reload"


def test_no_holder_and_no_table_is_an_open_host() -> None:
    assert first(held(name="")).id == "security.firewall"
