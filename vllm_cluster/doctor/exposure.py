"""What of the cluster answers from the operator's machine, which is mostly no host of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import HERE, Finding, Step, by_hand, on
from vllm_cluster.doctor.rules import OUR_TABLE, Packet, accepting, rules
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.facts.doctor.script import UNUSED_PORT
from vllm_cluster.plan import HostPlan, Plan, PortUse, paths, ufw

TIMEOUT_S = 1.2
_LINE_BYTES = 256
SSH_PORT = 22
# A high one and a low one: some proxies take no ports of the ephemeral range.
_NOBODYS = (UNUSED_PORT, 1)
_HTTP = ("ray dashboard", "ray agent http", "ray metrics", "ray autoscaler metrics",
         "ray dashboard metrics")  # fmt: skip


@dataclass(frozen=True)
class Dialled:
    """What came of dialling a port: open or not, from which own address to which of the host's, and
    HTTP's first line."""

    open: bool
    source: str = ""
    http: str = ""
    address: str = ""


Answers = Mapping[tuple[str, int], Dialled]


def dial_all(plan: Plan, ssh_port: int = SSH_PORT) -> dict[tuple[str, int], Dialled]:
    """Dial every port of the plan on every host, and SSH: about a second for all of them.

    A host that SSH reaches by another address, a public one maybe, listens there as well.
    """
    return asyncio.run(_every(plan, ssh_port))


async def _every(plan: Plan, ssh_port: int) -> dict[tuple[str, int], Dialled]:
    names = {host.name: host for host in plan.hosts.values()}
    found = await asyncio.gather(*(_addresses(host) for host in names.values()))
    wanted = [
        (name, use, address)
        for name, addresses in zip(names, found, strict=True)
        for use in _uses(plan, names[name], ssh_port)
        for address in addresses
    ]
    dialled = await asyncio.gather(*(_dial(address, use) for _, use, address in wanted))
    answers: dict[tuple[str, int], Dialled] = {}
    for (name, use, _), answer in zip(wanted, dialled, strict=True):
        if answer.open or (name, use.first) not in answers:
            answers[name, use.first] = answer
    return answers


async def _addresses(host: HostPlan) -> list[str]:
    """On the fabric, and as SSH dials it where this machine's resolver knows that name."""
    if host.ssh == host.address:
        return [host.address]
    loop = asyncio.get_running_loop()
    try:
        rows = await asyncio.wait_for(loop.getaddrinfo(host.ssh, None, family=AF_INET), TIMEOUT_S)
    except (OSError, TimeoutError):
        rows = []
    return list(dict.fromkeys([host.address, *(str(row[4][0]) for row in rows)]))


def direct(ssh_argv: list[str]) -> bool:
    """Whether SSH reaches the host by itself, by ssh's own account of its settings.

    Behind a jump host or a proxy command an address may be another machine's from here.
    """
    done = subprocess.run(
        [ssh_argv[0], "-G", *ssh_argv[1:]], capture_output=True, text=True, check=False
    )
    words = {line.split(" ")[0] for line in done.stdout.splitlines()}
    return done.returncode == 0 and not words & {"proxycommand", "proxyjump"}


def _uses(plan: Plan, host: HostPlan, ssh_port: int = SSH_PORT) -> Iterator[PortUse]:
    yield PortUse("ssh", ssh_port, ssh_port, "every host", "all", "api")
    # Nobody listens there. Where it answers, something in between answers for the host.
    for port in _NOBODYS:
        yield PortUse("nothing", port, port, "every host", "all", "nobody")
    for use in plan.ports:
        if use.where == "every host" or host.role == "head":
            yield use


async def _dial(address: str, use: PortUse) -> Dialled:
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(address, use.first), TIMEOUT_S
        )
    except (OSError, TimeoutError):
        return Dialled(open=False)
    source = str(writer.get_extra_info("sockname")[0])
    http = ""
    if use.name in _HTTP:
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(f"GET / HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            http = await asyncio.wait_for(_first_line(reader), TIMEOUT_S)
    writer.close()
    return Dialled(True, source, http, address)


async def _first_line(reader: asyncio.StreamReader) -> str:
    """What comes before the first line break, of whoever listens there: no more than fits in one
    line, and nothing that a terminal would obey."""
    data = b""
    while b"\n" not in data and len(data) < _LINE_BYTES:
        chunk = await reader.read(_LINE_BYTES - len(data))
        if not chunk:
            break
        data += chunk
    line = data.partition(b"\n")[0].decode("latin-1").strip()
    return "".join(char for char in line if char.isprintable())


def looked(answers: Answers) -> bool:
    """Whether this machine has a way of its own to the hosts."""
    return any(f.open and not _answered_for(answers, host) for (host, _), f in answers.items())


def _answered_for(answers: Answers, host: str) -> bool:
    """A proxy that takes every connection makes all ports look open."""
    return any(answers.get((host, port), Dialled(open=False)).open for port in _NOBODYS)


def findings(plan: Plan, answers: Answers, case: Case | None = None) -> Iterator[Finding]:
    """Ports that answer though the plan lets nobody from here in. One finding a host.

    `case`: what the hosts say of their firewalls; without it nobody has looked at them.
    """
    hosts = {host.address for host in plan.hosts.values()}
    for host in plan.hosts.values():
        if _answered_for(answers, host.name):
            continue
        wide = [
            (use, found)
            for use in _uses(plan, host)
            if (found := answers.get((host.name, use.first), Dialled(open=False))).open
            and use.name not in {"ssh", "nothing"}
            and found.source not in hosts
            and not (use.allowed == "api" and _may_use_api(plan, found.source))
        ]
        certain = [(u, f) for u, f in wide if u.allowed != "api" or not _translated(host, f)]
        if certain:
            yield _exposed(host, certain, case)
        elif wide:
            yield _maybe(host, *wide[0])


def _translated(host: HostPlan, found: Dialled) -> bool:
    """Whether the host certainly sees another address than ours: a private one does not get to
    a public one."""
    there = IPv4Address(found.address or host.address)
    return there.is_global and not IPv4Address(found.source).is_global


def _maybe(host: HostPlan, use: PortUse, found: Dialled) -> Finding:
    return Finding(
        "security.exposed", "security", host.name,
        expected=f"an answer of {use.name} ({use.first}) to those alone that the plan lets in",
        found=f"it answers here; {host.name} sees another address than {found.source}, and whether "
        "the plan lets that one in cannot be told from here",
        evidence=f"connect {found.address}:{use.first} from {found.source}: open",
        fix=by_hand("If this network's public address is not in network.api_from, see which rule "
                    f"of {host.name}'s firewall lets it in"),
        severity="warning",
    )  # fmt: skip


def _exposed(host: HostPlan, wide: list[tuple[PortUse, Dialled]], case: Case | None) -> Finding:
    use, first = wide[0]
    names = ", ".join(f"{use.name} ({use.first})" for use, _ in wide)
    bare = [f"{use.name}: {found.http}" for use, found in wide if " 200" in found.http]
    address = first.address or host.address
    evidence = f"connect {address}:{use.first} from {first.source}: open"
    facts = case.facts.get(host.name) if case else None
    if case is None or facts is None or not facts.root:
        rule, fix = "", by_hand(f"See which rule of {host.name}'s firewall lets {first.source} in; "
                                "`vllm-cluster doctor` names it where SSH gets there")  # fmt: skip
    else:
        packet = Packet(first.source, [use.first], address, facts.addresses.get(address, ""))
        rule, fix = _closing(case, host, facts, packet)
    return Finding(
        "security.exposed", "security", host.name,
        expected=f"no answer to {first.source}, which is no host of the cluster",
        found=f"{names} answer" + (f"; without a token: {', '.join(bare)}" if bare else ""),
        evidence="; ".join(filter(None, (evidence, rule))),
        fix=fix,
    )  # fmt: skip


def _closing(
    case: Case, host: HostPlan, facts: HostFacts, packet: Packet
) -> tuple[str, tuple[Step, ...]]:
    """What lets the packet in, and what ends that, with the tool that holds the firewall."""
    port, rule = packet.ports[0], accepting(facts.nft, packet)
    text = rule.text if rule else ""
    holder = facts.holder.name
    published = [c.name for c in facts.docker.containers.values() if c.running
                 and any(p.endswith(f":{port}") for p in c.published)]  # fmt: skip
    if published:
        return f"docker ps: {published[0]} publishes {port}", on(
            host.name, f"docker stop {published[0]}")  # fmt: skip
    if holder == "ufw":
        return _of_ufw(host, facts, packet, text)
    if holder == "firewalld":
        return text, by_hand(f"On {host.name}, `firewall-cmd --list-all-zones` and "
                             f"`firewall-cmd --list-all-policies` show what lets {packet.source} "
                             f"come to port {port}: take it out, --permanent too")  # fmt: skip
    ours = [rule for rule in rules(facts.nft) if rule.table == OUR_TABLE]
    closed = any(each.hook == "input" and each.policy == "drop" for each in ours)
    if not closed or (rule is not None and OUR_TABLE in rule.text):
        # Loaded anew, our table is what the plan says: rules that somebody put into it are gone.
        there = paths.FIREWALL in facts.files
        restart = on(host.name, f"systemctl restart {paths.FIREWALL_UNIT}")
        return text, restart if there else case.run_deploy()
    return text, by_hand(f"Our table on {host.name} drops this: look for what answers before it, "
                         "such as a proxy or a NAT rule (`nft list ruleset`)")  # fmt: skip


def _of_ufw(
    host: HostPlan, facts: HostFacts, packet: Packet, text: str
) -> tuple[str, tuple[Step, ...]]:
    state = " ".join(facts.holder.state)
    if "Status: active" not in state:
        return f"ufw status: {state}", on(host.name, "ufw --force enable")
    wanted = ufw.wanted(host.allow)
    for line in facts.holder.rules:
        found = ufw.parse(line)
        if found is not None and found[0] not in wanted and _lets_in(found[0], packet):
            return line, on(host.name, f"ufw {found[0].removal()}")
    if not re.search(r"(?:deny|reject) \(incoming\)", state):
        return f"ufw status: {state}", on(host.name, "ufw default deny incoming")
    return text, by_hand(f"On {host.name}, `ufw status numbered` shows the rule that lets "
                         f"{packet.source} come to port {packet.ports[0]}; "
                         "`ufw delete NUMBER` takes it away")  # fmt: skip


def _lets_in(rule: ufw.UfwRule, packet: Packet) -> bool:
    if rule.ports and packet.ports[0] not in rule.ports:
        return False
    try:
        return rule.source == "any" or IPv4Address(packet.source) in IPv4Network(rule.source)
    except ValueError:
        return False  # IPv6


def _may_use_api(plan: Plan, source: str) -> bool:
    allowed = [
        network
        for rule in plan.hosts[plan.head].allow
        if plan.api_port in rule.ports
        for network in rule.sources
    ]
    return any(IPv4Address(source) in IPv4Network(network) for network in allowed)


def keyless(plan: Plan, description: str, deploy: str) -> Iterator[Finding]:
    """An API without a key, open to addresses of the internet."""
    wide = [
        network
        for rule in plan.hosts[plan.head].allow
        if plan.api_port in rule.ports
        for network in rule.sources
        if not IPv4Network(network).is_private
    ]
    if not plan.api_key and wide:
        # An edit in words: YAML has many forms of the same, and what stands there is a person's.
        edit = by_hand(f"In {description}, secrets.api_key: generate in place of none")
        yield Finding(
            "security.keyless", "security", plan.head,
            expected="an API key where the API is open beyond private networks",
            found=f"secrets.api_key is none, and {', '.join(wide)} may use the API",
            evidence=f"{description}: secrets.api_key: none",
            fix=(*edit, Step(HERE, deploy)),
        )  # fmt: skip
