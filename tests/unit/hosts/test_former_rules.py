"""While roles move, a host lets in whom it let in for what still serves; afterwards nobody more."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.hosts.recorder import sent
from vllm_cluster.facts.firewall import Firewall
from vllm_cluster.operations import generations
from vllm_cluster.plan import Allow
from vllm_cluster.plan.admitted import widened
from vllm_cluster.plan.generations import Kept, Record, moves
from vllm_cluster.steps.firewall import firewall_step, former_firewall_step

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
ADDRESSES = {"node-a": "192.168.1.10", "node-b": "192.168.1.11", "node-c": "192.168.1.12"}
API = '192.168.0.0/16 } tcp dport { 8000 } accept comment "API"'
# An active ufw, and firewalld, as far as the fact asks them.
UFW = "ufw Status: active\nufw active\nufw Default: deny (incoming), allow (outgoing)\n"


def whole() -> None:
    """As deploys/cluster.py, without what is between."""
    generations.inspected()
    firewall_step()
    former_firewall_step()


@dataclass
class Host:
    """One host whose firewall's answers are those of a directory that stands in for its /etc."""

    folder: Path

    def run(
        self, name: str, head: str, hosts: tuple[str, ...], serves: Mapping[str, Any] | None,
        answers: str = "",
    ) -> list[str]:  # fmt: skip
        """What a run of the description sends: the text of each try of rules.

        `serves`: the record of the generation there. `answers`: of another holder than our table.
        """
        described = yaml.safe_load(PROD.read_text())
        described["hosts"] = {each: {"address": ADDRESSES[each], "gpus": 4} for each in hosts}
        described["head"], described["parallel"]["pipeline"] = head, len(hosts)
        described["ssh"].pop("key")
        described["model"]["source"] = str(self.folder / "model")
        file = self.folder / f"{len(list(self.folder.iterdir()))}.yaml"  # read once a process
        file.write_text(yaml.safe_dump(described))
        kept = {"current": "g1", "records": [{"id": "g1", **serves}]} if serves else {}
        known = {
            "sshd -T": f"ssh 22\n{answers or self.asked()}",
            "generation show": json.dumps(kept),
        }
        commands = sent(whole, name, {"description": str(file), "answers": known})
        said = [each.partition("\n") for each in commands]
        tried = [f"{text}\n" for command, _, text in said if command.endswith(" 45")]
        if tried and not answers:
            self.confirmed(tried[-1])
        return tried

    def confirmed(self, text: str) -> None:
        """The state after `firewall-load confirm`."""
        (self.folder / "firewall").mkdir(exist_ok=True)
        (self.folder / "firewall.nft").write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        (self.folder / "firewall/loaded").write_text(f"{digest}  -\ntable\n")

    def asked(self) -> str:
        """What the fact's own script says of the rules' file here."""
        script = str(Firewall().command()).replace("/etc/vllm-cluster", str(self.folder))
        script = script.replace("/etc/firewalld/policies", str(self.folder))
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=True,
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
        )  # fmt: skip
        ours = ("file ", "loaded ", "nft-rule ", "policy", "firewalld ")
        return "".join(f"{x}\n" for x in done.stdout.splitlines() if x.startswith(ours)) + (
            "table table" if (self.folder / "firewall").exists() else ""
        )


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr("vllm_cluster.operations.ssh.run", lambda *_, **__: True)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["StandIn"]}\n')
    (model / "model.safetensors").write_bytes(b"\0" * 64)
    return Host(tmp_path)


TWO, THREE = ("node-a", "node-b"), ("node-a", "node-b", "node-c")


def test_the_old_head_lets_in_users_of_the_api_until_the_new_one_serves(etc: Host) -> None:
    served = {"head": "node-a", "hosts": TWO}
    [before] = etc.run("node-a", "node-a", TWO, None)
    assert API in before
    # Once, at the end: until then the rules are as they were.
    [narrow] = etc.run("node-a", "node-b", TWO, served)
    assert API not in narrow
    assert etc.run("node-a", "node-b", TWO, {**served, "head": "node-b"}) == []


def test_a_host_that_leaves_is_let_in_until_the_others_serve_without_it(etc: Host) -> None:
    served = {"head": "node-a", "hosts": THREE}
    [before] = etc.run("node-b", "node-a", THREE, None)
    assert ADDRESSES["node-c"] in before
    wide, narrow = etc.run("node-b", "node-a", TWO, served)
    assert f"ip saddr {{ {ADDRESSES['node-c']} }} accept" in wide
    assert ADDRESSES["node-c"] not in narrow
    assert etc.run("node-b", "node-a", TWO, served) == [], "nothing is opened again"


def test_the_new_head_opens_before_it_serves(etc: Host) -> None:
    served = {"head": "node-a", "hosts": TWO}
    etc.run("node-b", "node-a", TWO, None)
    [tried] = {*etc.run("node-b", "node-b", TWO, served)}
    assert API in tried


def test_an_ufw_that_keeps_ssh_out_is_refused_before_anything_is_tried(etc: Host) -> None:
    denied = f"{UFW}ufw-rule ufw deny 22/tcp\n"
    assert etc.run("node-a", "node-a", TWO, None, denied) == []
    assert len(etc.run("node-a", "node-a", TWO, None, UFW)) == 1


def test_without_a_move_and_at_a_first_deploy_the_plan_alone_holds(etc: Host) -> None:
    [first] = etc.run("node-a", "node-a", THREE, None)
    # Rules of a cluster that was here before: nothing is known to serve.
    [other] = etc.run("node-b", "node-b", TWO, None)
    assert ADDRESSES["node-c"] not in other
    assert etc.run("node-a", "node-a", THREE, {"head": "node-a", "hosts": THREE}) == [first]
    assert etc.run("node-a", "node-a", THREE, {"head": "node-a", "hosts": THREE}) == []


def test_rules_that_were_never_confirmed_are_not_kept(etc: Host) -> None:
    etc.run("node-a", "node-a", TWO, None)
    file = etc.folder / "firewall.nft"
    file.write_text(file.read_text().replace("192.168.0.0/16", "0.0.0.0/0"))
    [narrow] = {*etc.run("node-a", "node-b", TWO, {"head": "node-a", "hosts": TWO})}
    assert "0.0.0.0/0 } tcp dport { 8000 }" not in narrow


def test_ufw_keeps_the_rule_until_the_move_is_over(etc: Host) -> None:
    served = {"head": "node-a", "hosts": TWO}
    ours = "comment 'vllm-cluster: hosts of the cluster reach every port'"
    rules = (
        *(f"ufw allow from {ADDRESSES[name]} {ours}" for name in THREE),
        "ufw allow 22/tcp comment 'vllm-cluster: SSH'",
        "ufw allow from 192.168.0.0/16 to any port 8000 proto tcp comment 'vllm-cluster: API'",
        "ufw allow 9100/tcp comment 'mine'",
    )
    answers = UFW + "".join(f"ufw-rule {rule}\n" for rule in rules)
    # The one try is that of the end: before it nothing is missing, and nothing goes.
    assert etc.run("node-a", "node-b", TWO, {**served, "hosts": THREE}, answers) == [
        f"delete allow from {ADDRESSES['node-c']}\n"
        "delete allow from 192.168.0.0/16 to any port 8000 proto tcp\n"
    ]


def test_firewalld_keeps_the_rule_until_the_move_is_over(etc: Host) -> None:
    (etc.folder / "bin").mkdir()
    program = etc.folder / "bin/firewall-cmd"
    program.write_text("#!/bin/sh\n[ $1 != --state ] || echo running\n")
    program.chmod(0o755)
    policy = etc.folder / "vllm-cluster.xml"
    [text] = etc.run("node-a", "node-a", THREE, None)
    policy.write_text(text)
    wide, narrow = etc.run("node-a", "node-b", TWO, {"head": "node-a", "hosts": THREE})
    for rule in (ADDRESSES["node-c"], 'address="192.168.0.0/16"/><port port="8000"'):
        assert wide.count(rule) == 1
        assert rule not in narrow
    policy.write_text(wide)
    again, _ = etc.run("node-a", "node-b", TWO, {"head": "node-a", "hosts": THREE})
    assert again == wide, "after a failed switch"


def test_only_what_follows_from_roles_is_kept() -> None:
    now = (
        Allow("hosts of the cluster reach every port", ("10.0.0.1", "10.0.0.3")),
        Allow("SSH", ("0.0.0.0/0",), (22,)),
        Allow("API", ("10.0.0.0/8",), (8000,)),
        Allow("exporter", ("10.0.0.9/32",), (9100,)),
    )
    planned = (
        Allow("hosts of the cluster reach every port", ("10.0.0.1", "10.0.0.2")),
        Allow("SSH", ("10.0.0.0/8",), (22,)),
    )
    assert widened(planned, now) == (
        *planned,
        Allow("hosts of the cluster reach every port", ("10.0.0.3",)),
        Allow("API", ("10.0.0.0/8",), (8000,)),
    )
    assert widened(now, now) == now


@pytest.mark.parametrize(
    ("record", "moved"),
    [
        (None, False),
        (Record(1, "g1", "good"), False),
        (Record(1, "g1", "good", head="a", hosts=("a",)), False),
        (Record(1, "g1", "good", head="b", hosts=("a", "b")), True),
        (Record(1, "g1", "good", head="a", hosts=("a", "c")), True),
    ],
)
def test_roles_move_where_the_head_or_a_host_of_what_serves_is_another(
    record: Record | None, moved: bool
) -> None:
    kept = Kept() if record is None else Kept(current="g1", records={"g1": record})
    assert moves(kept, "a", ("a", "b")) is moved
