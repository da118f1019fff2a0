"""Names: every host resolves every other to its fabric address, itself included."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, on
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan.hosts_file import BEGIN, END

_HOSTS = "/etc/hosts"


def resolve(case: Case) -> Iterator[Finding]:
    """A name that leads to loopback makes gloo and torch listen there alone
    (https://github.com/vllm-project/vllm/issues/7074)."""
    for host, facts in case.deployed():
        for name, other in case.plan.hosts.items():
            found = facts.names.get(name, ())
            if found == (other.address,):
                continue
            wrong = _foreign_lines(facts, name, other.address)
            fix = case.run_deploy()
            if wrong:
                edits = ";".join(_without(number, line, name) for number, line in wrong)
                fix = on(host.name, f"sed -i '{edits}' {_HOSTS}")
            yield Finding(
                "network.name", "network", host.name,
                expected=f"{name} is {other.address}",
                found=f"{name} is {' and '.join(found) or 'unknown'} on {host.name}",
                evidence="; ".join(f"{_HOSTS}:{number}: {line}" for number, line in wrong)
                or f"getent ahostsv4 {name}: {' '.join(found) or 'nothing'}",
                fix=fix,
            )  # fmt: skip


def _without(number: int, line: str, name: str) -> str:
    """sed's words for that line without `name`; without the line where it says nothing else."""
    if line.partition("#")[0].split()[1:] == [name]:
        return f"{number}d"
    word = name.replace(".", r"\.")
    return rf"{number}s/[[:space:]]\+{word}\([[:space:]#]\|$\)/\1/g"


def _foreign_lines(facts: HostFacts, name: str, address: str) -> list[tuple[int, str]]:
    """Lines outside of our block that give `name` another address; the deploy leaves those."""
    found, inside = [], False
    for number, line in enumerate(facts.contents.get(_HOSTS, "").splitlines(), 1):
        if line == BEGIN:
            inside = True
        words = line.partition("#")[0].split()
        other = words[:1] not in ([], [address])
        if not inside and other and name in words[1:] and not words[0].startswith("127."):
            found.append((number, line))
        if line == END:
            inside = False
    return found


def cloud_init(case: Case) -> Iterator[Finding]:
    """cloud-init that writes /etc/hosts anew at every boot."""
    for host, facts in case.seen():
        # The last file wins, and the script reads them in that order.
        if facts.cloud_init and facts.cloud_init[-1].split(":")[-1].strip() not in {"false", "no"}:
            drop_in = "/etc/cloud/cloud.cfg.d/99-vllm-cluster.cfg"
            yield Finding(
                "network.cloud-init", "network", host.name,
                expected=f"{_HOSTS} left alone at boot",
                found="cloud-init writes it anew",
                evidence=facts.cloud_init[-1].strip(),
                fix=on(host.name, f"echo 'manage_etc_hosts: false' > {drop_in}"),
                severity="warning",
            )  # fmt: skip


CHECKS = (resolve, cloud_init)
