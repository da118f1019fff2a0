"""Hosts: reachable, root, deployed, clocks together, ports free."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.facts.doctor.model import HostFacts, Owner
from vllm_cluster.plan import HostPlan, PortUse

# Ray and NCCL bear any skew; certificates, tokens with a time and logs side by side do not.
CLOCK_LIMIT_S = 2.0


def unreachable(case: Case) -> Iterator[Finding]:
    """Hosts that SSH did not reach, or reached without root. Nothing else is known of them."""
    for name, silence in case.silent.items():
        if "HOST IDENTIFICATION HAS CHANGED" in silence.words:
            address = case.plan.hosts[name].ssh
            port = re.search(r" -p (\d+) ", silence.command)
            if port and port[1] != "22":
                address = f"'[{address}]:{port[1]}'"  # as known_hosts has it
            yield Finding(
                "host.key-changed", "host", name,
                expected="the SSH host key that is known",
                found="another one: the machine was reinstalled, or is not the one you mean",
                evidence=_line(silence.words, "fingerprint|Offending|CHANGED"),
                fix=on("here", f"ssh-keygen -R {address} -f {case.known_hosts}"),
                severity="blind",
            )  # fmt: skip
            continue
        if re.search(r"^sudo: |sudo: (?:command )?not found", silence.words, re.MULTILINE):
            yield _no_root(case, name, silence.words.splitlines()[-1])
            continue
        found, deed = _unanswered(case, name, silence.words)
        yield Finding(
            "host.unreachable", "host", name,
            expected="an answer over SSH",
            found=found,
            evidence=silence.words.splitlines()[-1],
            fix=by_hand(f"{deed}; then this must answer: {silence.command} true"),
            severity="blind",
        )  # fmt: skip
    for name, facts in case.facts.items():
        if not facts.root:
            yield _no_root(case, name, "")
        elif not facts.complete:
            yield Finding(
                "host.incomplete", "host", name,
                expected="an answer to every question",
                found=facts.ended or "the connection ended before the last one",
                evidence=facts.words,
                fix=by_hand(f"Run doctor again; if it stays so, look at {name}'s console"),
                severity="blind",
            )  # fmt: skip


def _unanswered(case: Case, name: str, words: str) -> tuple[str, str]:
    """What kept SSH out, and what a person does about it, by ssh's own words."""
    if "Permission denied" in words or "Too many authentication failures" in words:
        return "it is there, and refuses the key", f"Let the SSH user of {case.description} " \
            f"into {name} with ssh.key, or correct either"  # fmt: skip
    if "Host key verification failed" in words:
        return "it is there with a host key that is not known", f"Compare the host key of " \
            f"{name} with its console's and add it to {case.known_hosts}"  # fmt: skip
    if "Could not resolve hostname" in words:
        return "its name leads nowhere", f"Correct hosts.{name}.ssh in {case.description}, or " \
            "the name server"  # fmt: skip
    return "none", f"Switch {name} on, or mend its network"


def _no_root(case: Case, name: str, evidence: str) -> Finding:
    return Finding(
        "host.no-root", "host", name,
        expected="root, or a user that may sudo without a password",
        found="neither",
        evidence=evidence,
        fix=by_hand(f"On {name}, let the SSH user of {case.description} run `sudo -n`"),
        severity="blind",
    )  # fmt: skip


def not_deployed(case: Case) -> Iterator[Finding]:
    """Hosts without our files in a cluster that has been deployed elsewhere."""
    if not case.deployed_somewhere:
        return
    for host, facts in case.seen():
        if not facts.deployed:
            yield Finding(
                "host.not-deployed", "host", host.name,
                expected="the cluster's files, as on the other hosts",
                found="none: a new or a wiped machine",
                evidence="ls: cannot access '/etc/vllm-cluster': No such file or directory",
                fix=case.run_deploy(),
            )  # fmt: skip


def clocks(case: Case) -> Iterator[Finding]:
    """Clocks apart from each other's middle, and so from this machine's or the majority's."""
    offsets = {
        host.name: facts.clock_offset_s
        for host, facts in case.seen()
        if facts.clock_offset_s is not None
    }
    # This machine's own clock has a vote: with two hosts there would be no majority.
    middle = statistics.median([0.0, *offsets.values()])
    for name, offset in offsets.items():
        if abs(offset - middle) > CLOCK_LIMIT_S:
            service = _time_service(case.facts[name])
            yield Finding(
                "host.clock", "host", name,
                expected=f"a clock within {CLOCK_LIMIT_S:.0f} s of the others",
                found=f"{offset - middle:+.1f} s; {service[0]}",
                evidence=f"date +%s: {case.facts[name].clock_s:.1f}",
                fix=on(name, service[1]),
            )  # fmt: skip


def _time_service(facts: HostFacts) -> tuple[str, str]:
    for unit in ("chrony.service", "chronyd.service", "ntpsec.service"):
        if facts.unit(unit).load == "loaded":
            running = f"{unit} is {facts.unit(unit).active}"
            step = " && chronyc -a makestep" if unit.startswith("chrony") else ""
            return running, f"systemctl enable --now {unit} && systemctl restart {unit}{step}"
    if facts.unit("systemd-timesyncd.service").load == "loaded":
        unit = "systemd-timesyncd.service"
        return f"{unit} is {facts.unit(unit).active}", f"systemctl enable {unit} && " \
            f"systemctl restart {unit}"  # fmt: skip
    return "no time service is installed", "apt-get install -y chrony && chronyc -a makestep"


# What a run lets listen for half a minute, so that its hosts can dial each other
# (facts/network.py, Listening); the kernel keeps 15 characters of a name.
_LISTENER = "systemd-socket-"


def ports_taken(case: Case) -> Iterator[Finding]:
    """A planned port that a process outside the cluster's containers listens on."""
    for host, facts in case.seen():
        if facts.docker.silent:
            continue  # which processes are of our containers is not known then
        for use in case.plan.ports:
            if use.where == "head" and host.role != "head":
                continue
            for owner in facts.owners:
                if owner.ours or owner.command.startswith(_LISTENER):
                    continue
                if use.first <= owner.port <= use.last:
                    yield _taken(host, facts, use, owner)


def _taken(host: HostPlan, facts: HostFacts, use: PortUse, owner: Owner) -> Finding:
    kill = f"kill {owner.pid}"
    # Docker listens itself for a container that publishes the port.
    container = owner.container or next(
        (c.name for c in facts.docker.containers.values()
         if c.running and any(p.endswith(f":{owner.port}") for p in c.published)), "",
    )  # fmt: skip
    if container:
        kill = f"docker stop {container}"
    elif owner.unit and not _HOSTS_OWN.match(owner.unit):
        kill = f"systemctl disable --now {owner.unit}"
    return Finding(
        "host.port-taken", "host", host.name,
        expected=f"port {owner.port} for {use.name}",
        found=f"{owner.command} (process {owner.pid}) listens there",
        evidence=owner.line,
        fix=on(host.name, kill),
    )  # fmt: skip


# Without these there is no cluster, or no way to the host: one process of theirs ends, not they.
_HOSTS_OWN = re.compile(r"(docker|containerd|sshd?|cron|dbus|user@\d+|systemd-.*)\.service$")


def ephemeral(case: Case) -> Iterator[Finding]:
    """Planned ports that the kernel may hand to any outgoing connection."""
    for host, facts in case.seen():
        first, last = facts.system.ephemeral
        exposed = [
            use for use in case.plan.ports
            if use.last >= first > 0 and use.first <= last
            and not any(a <= use.first and use.last <= b for a, b in facts.system.reserved)
        ]  # fmt: skip
        if exposed:
            ports = ",".join(
                str(u.first) if u.first == u.last else f"{u.first}-{u.last}" for u in exposed
            )
            # Written whole: what others have reserved stays so.
            kept = [str(a) if a == b else f"{a}-{b}" for a, b in facts.system.reserved]
            yield Finding(
                "host.ports-ephemeral", "host", host.name,
                expected="ports that no other process is given by chance",
                found=f"{ports} lie in the ephemeral range {first}-{last}",
                evidence=f"net.ipv4.ip_local_port_range = {first} {last}",
                fix=on(host.name, f"sysctl -w net.ipv4.ip_local_reserved_ports="
                       f"{','.join([*kept, ports])}"),
                severity="warning",
            )  # fmt: skip


def _line(text: str, pattern: str) -> str:
    return next((line for line in text.splitlines() if re.search(pattern, line)), text[:200])


CHECKS = (unreachable, not_deployed, clocks, ports_taken, ephemeral)
