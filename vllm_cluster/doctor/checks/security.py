"""Who can read and reach what they should not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, on
from vllm_cluster.doctor.rules import OUR_TABLE, rules
from vllm_cluster.plan import Allow, paths

_OPEN_MODE = 0o077
_UNAUTHORIZED = 401


def firewall(case: Case) -> Iterator[Finding]:
    """Our table is loaded, drops by default, and lets in whom the plan names."""
    for host, facts in case.deployed():
        ours = [rule for rule in rules(facts.nft) if rule.table == OUR_TABLE]
        base = [rule for rule in ours if rule.hook == "input" and rule.policy == "drop"]
        missing = [allow for allow in host.allow if not _allowed(allow, [r.text for r in ours])]
        unit = facts.unit(paths.FIREWALL_UNIT)
        # The deploy puts its rules into ufw or firewalld where one of them is on.
        elsewhere = "ufw-user-input" in facts.nft or facts.unit("firewalld.service").running
        if (base and not missing) or elsewhere:
            continue
        if unit.load in {"masked", "not-found"}:
            continue
        found = "the table is not loaded" if not ours else "it does not drop by default"
        if base and missing:
            found = f"no rule for “{missing[0].comment}”"
        fix = on(host.name, f"systemctl restart {paths.FIREWALL_UNIT}")
        yield Finding(
            "security.firewall", "security", host.name,
            expected=f"nftables table {OUR_TABLE}, closed but for the cluster, SSH and the API",
            found=found,
            evidence=f"nft list table {OUR_TABLE}: " + (f"{len(ours)} rules" if ours else "none"),
            fix=fix if paths.FIREWALL in facts.files else case.run_deploy(),
        )  # fmt: skip


def _allowed(allow: Allow, texts: list[str]) -> bool:
    """Whether an accepting rule names every source and port. nft prints 0.0.0.0/0 in its own way
    and merges neighbours into ranges, so a rule with our comment is asked for its ports alone."""
    for text in texts:
        if not re.search(r"\baccept\b", text):
            continue
        if f'comment "{allow.comment}"' in text:
            return all(re.search(rf"\b{port}\b", text) for port in allow.ports)
        if all(source in text for source in allow.sources) and all(
            re.search(rf"\b{port}\b", text) for port in allow.ports
        ):
            return True
    return False


def secrets(case: Case) -> Iterator[Finding]:
    """Secrets are there, root's, and closed to everybody else."""
    for host, facts in case.deployed():
        wanted = [paths.RAY_TOKEN] if case.plan.backend == "ray" else []
        if host.role == "head" and case.plan.api_key:
            wanted.append(paths.API_KEY)
        for path in wanted:
            if path not in facts.secrets:
                yield Finding(
                    "security.secret-missing", "security", host.name,
                    expected=path, found="no such file",
                    evidence=f"stat: cannot statx '{path}': No such file or directory",
                    fix=case.run_deploy(),
                )  # fmt: skip
        if facts.secrets.get(paths.API_KEY) not in {None, case.secrets.get(paths.API_KEY)}:
            yield Finding(
                "security.secret-other", "security", host.name,
                expected=f"the operator's API key in {paths.API_KEY}",
                found="another one",
                evidence=f"salted digests: {facts.secrets[paths.API_KEY]}, "
                f"{case.secrets.get(paths.API_KEY)}",
                fix=case.run_deploy(),
            )  # fmt: skip
        for path in (*wanted, paths.SECRETS):
            file = facts.files.get(path)
            if file is None:
                continue
            mode = "700" if path == paths.SECRETS else "600"
            if int(file.mode, 8) & _OPEN_MODE or file.user != "root":
                yield Finding(
                    "security.secret-readable", "security", host.name,
                    expected=f"{path} for root alone (mode {mode})",
                    found=f"mode {file.mode}, {file.user}:{file.group}",
                    evidence=f"stat {path}: {file.mode} {file.user} {file.group}",
                    fix=on(host.name, f"chown root:root {path} && chmod {mode} {path}"),
                )  # fmt: skip


def published(case: Case) -> Iterator[Finding]:
    """Ports that Docker publishes go around every rule of the input chain
    (https://github.com/moby/moby/issues/4737)."""
    for host, facts in case.seen():
        for container in facts.docker.containers.values():
            outside = [p for p in container.published if not p.startswith(("127.", "::1", "[::1]"))]
            if container.running and outside:
                yield Finding(
                    "security.published-port", "security", host.name,
                    expected="no container that publishes a port past the firewall",
                    found=f"{container.name} publishes {', '.join(outside)}",
                    evidence=f"docker ps: {container.name} {container.status} "
                    f"{' '.join(outside)}",
                    fix=on(host.name, f"docker stop {container.name}"),
                )  # fmt: skip


def api_key(case: Case) -> Iterator[Finding]:
    """The API asks for its key, where the plan has one."""
    head = case.head
    if head is None or not case.plan.api_key or not head.api.keyless_status:
        return
    if head.api.keyless_status != _UNAUTHORIZED:
        yield Finding(
            "security.api-open", "security", case.plan.head,
            expected="401 for a request without the key",
            found=f"{head.api.keyless_status}",
            evidence=f"GET /v1/models: HTTP {head.api.keyless_status}",
            fix=on(case.plan.head, "systemctl restart --no-block vllm.service"),
        )  # fmt: skip


def loopback(case: Case) -> Iterator[Finding]:
    """What shall listen on loopback alone does: an open dashboard runs anybody's code
    (CVE-2023-48022)."""
    for host, facts in case.deployed():
        for use in case.plan.ports:
            if use.bind != "loopback":
                continue
            for listener in facts.listeners:
                inside = use.first <= listener.port <= use.last
                if inside and not listener.address.startswith(("127.", "::1")):
                    yield Finding(
                        "security.bound-wide", "security", host.name,
                        expected=f"{use.name} on loopback alone",
                        found=f"it listens on {listener.address}:{listener.port}",
                        evidence=f"ss: {listener.address}:{listener.port} {listener.process}",
                        fix=case.run_deploy(),
                    )  # fmt: skip


CHECKS = (firewall, secrets, published, api_key, loopback)
