"""The firewall: closed, and open to whom the plan names, through whatever holds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, Step, on
from vllm_cluster.doctor.rules import GCS_TABLE, OUR_TABLE, Rule, rules
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import Allow, HostPlan, paths, ufw

_CLOSED = re.compile(r"(?:deny|reject) \(incoming\)")


def firewall(case: Case) -> Iterator[Finding]:
    """Our table, or ufw or firewalld where one of them is on: the deploy puts its rules there."""
    look: dict[str, Callable[[Case, HostPlan, HostFacts], Finding | None]]
    look = {"ufw": _ufw, "firewalld": _firewalld, "": _own_table}
    for host, facts in case.deployed():
        finding = look[facts.holder.name](case, host, facts)
        if finding is not None:
            yield finding
        if facts.gcs:
            yield _gcs_table(host, facts)


def _gcs_table(host: HostPlan, facts: HostFacts) -> Finding:
    """Who left the description may reach Ray there, as far as the firewall lets it in."""
    unlike = {"absent": "it is not loaded", "changed": "other rules"}
    return Finding(
        "security.firewall-gcs", "security", host.name,
        expected=f"nftables table {GCS_TABLE} as ray-head.service put it up",
        found=unlike[facts.gcs],
        evidence=f"nft list table {GCS_TABLE}: {facts.gcs}",
        fix=on(host.name, f"systemctl restart {paths.FIREWALL_UNIT}"),
    )  # fmt: skip


def _own_table(case: Case, host: HostPlan, facts: HostFacts) -> Finding | None:
    ours = [rule for rule in rules(facts.nft) if rule.table == OUR_TABLE]
    closed = any(rule.hook == "input" and rule.policy == "drop" for rule in ours)
    missing = [allow for allow in host.allow if not _allowed(allow, ours)]
    if (closed and not missing) or facts.unit(paths.FIREWALL_UNIT).load in {"masked", "not-found"}:
        return None
    restart = on(host.name, f"systemctl restart {paths.FIREWALL_UNIT}")
    fix = restart if paths.FIREWALL in facts.files else case.run_deploy()
    evidence = f"nft list table {OUR_TABLE}: " + (f"{len(ours)} rules" if ours else "none")
    if closed:
        return _no_rule(host, f"nftables table {OUR_TABLE}", missing[0], evidence, fix)
    found = "it does not drop by default" if ours else "the table is not loaded"
    return _open(host, f"nftables table {OUR_TABLE}", found, evidence, fix)


def _allowed(allow: Allow, ours: list[Rule]) -> bool:
    """Whether an accepting rule names every source and port. nft prints 0.0.0.0/0 in its own way
    and merges neighbours into ranges, so a rule with our comment is asked for its ports alone."""
    for text in (rule.text for rule in ours):
        if not re.search(r"\baccept\b", text):
            continue
        sources = f'comment "{allow.comment}"' in text or all(s in text for s in allow.sources)
        if sources and all(re.search(rf"\b{port}\b", text) for port in allow.ports):
            return True
    return False


def _ufw(case: Case, host: HostPlan, facts: HostFacts) -> Finding | None:
    del case  # ufw is mended by its own commands
    state = " ".join(facts.holder.state)
    if "Status: active" not in state:
        return _open(host, "ufw", "it is switched on, and its rules are not loaded",
                     f"ufw status: {state}", on(host.name, "ufw --force enable"))  # fmt: skip
    if not _CLOSED.search(state):
        return _open(host, "ufw", "it lets in what it does not know", f"ufw status: {state}",
                     on(host.name, "ufw default deny incoming"))  # fmt: skip
    wanted = ufw.wanted(host.allow)
    found = [rule for rule in map(ufw.parse, facts.holder.rules) if rule is not None]
    missing = [rule for rule in wanted if not any(_covers(have, rule) for have, _ in found)]
    if missing:
        add = " && ".join(f"ufw {rule.arguments(wanted[rule])}" for rule in missing)
        allow = Allow(wanted[missing[0]], (missing[0].source,), missing[0].ports)
        return _no_rule(host, "ufw", allow, f"ufw show added: {len(found)} rules",
                        on(host.name, add))  # fmt: skip
    # SSH is open on the ports that sshd has, which the plan need not know.
    old = [rule for rule, comment in found if comment.startswith(ufw.MARK)
           and not comment.endswith("SSH") and rule not in wanted]  # fmt: skip
    if old:
        remove = on(host.name, " && ".join(f"ufw {rule.removal()}" for rule in old))
        return _open(host, "ufw", f"it lets {old[0].source} in, which the plan does not",
                     f"ufw show added: {old[0].removal().removeprefix('delete ')}",
                     remove)  # fmt: skip
    return None


def _covers(have: ufw.UfwRule, wanted: ufw.UfwRule) -> bool:
    """Whether `have` lets in all that `wanted` does."""
    wide = not have.ports or (bool(wanted.ports) and {*wanted.ports} <= {*have.ports})
    return wide and have.source in {wanted.source, "any"}


def _firewalld(case: Case, host: HostPlan, facts: HostFacts) -> Finding | None:
    for allow in host.allow:
        for source in allow.sources:
            where = "" if source == "0.0.0.0/0" else f'source address="{source}"'
            for port in allow.ports or (0,):
                what = f'port port="{port}" protocol="tcp"' if port else ""
                if not any(where in r and what in r and "accept" in r for r in facts.holder.rules):
                    return _no_rule(
                        host, "firewalld's policy vllm-cluster", allow,
                        f"firewall-cmd --policy=vllm-cluster --list-rich-rules: "
                        f"{len(facts.holder.rules)} lines",
                        (Step(host.name, "firewall-cmd --reload"), *case.run_deploy()),
                    )  # fmt: skip
    return None


def _no_rule(
    host: HostPlan, where: str, allow: Allow, evidence: str, fix: tuple[Step, ...]
) -> Finding:
    sources = ", ".join(allow.sources)
    ports = f" to port {', '.join(map(str, allow.ports))}" if allow.ports else ""
    return Finding(
        "security.firewall-rule", "security", host.name,
        expected=f"{where} lets {sources} in{ports}",
        found=f"no rule for “{allow.comment}”",
        evidence=evidence, fix=fix,
    )  # fmt: skip


def _open(host: HostPlan, where: str, found: str, evidence: str, fix: tuple[Step, ...]) -> Finding:
    return Finding(
        "security.firewall", "security", host.name,
        expected=f"{where}, closed but for the cluster, SSH and the API",
        found=found, evidence=evidence, fix=fix,
    )  # fmt: skip


CHECKS = (firewall,)
