"""What of the cluster answers from the operator's machine, which is mostly no host of it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET

from vllm_cluster.doctor.finding import Finding, on
from vllm_cluster.facts.doctor.script import UNUSED_PORT
from vllm_cluster.plan import HostPlan, Plan, PortUse, paths

TIMEOUT_S = 1.2
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


def dial_all(plan: Plan) -> dict[tuple[str, int], Dialled]:
    """Dial every port of the plan on every host, and SSH: about a second for all of them.

    A host that SSH reaches by another address, a public one maybe, listens there as well.
    """
    return asyncio.run(_every(plan))


async def _every(plan: Plan) -> dict[tuple[str, int], Dialled]:
    names = {host.name: host for host in plan.hosts.values()}
    found = await asyncio.gather(*(_addresses(host) for host in names.values()))
    wanted = [
        (name, use, address)
        for name, addresses in zip(names, found, strict=True)
        for use in _uses(plan, names[name])
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


def _uses(plan: Plan, host: HostPlan) -> Iterator[PortUse]:
    yield PortUse("ssh", 22, 22, "every host", "all", "api")
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
            line = await asyncio.wait_for(reader.readline(), TIMEOUT_S)
            http = line.decode("latin-1").strip()
    writer.close()
    return Dialled(True, source, http, address)


def looked(answers: Answers) -> bool:
    """Whether this machine has a way of its own to the hosts."""
    return any(f.open and not _answered_for(answers, host) for (host, _), f in answers.items())


def _answered_for(answers: Answers, host: str) -> bool:
    """A proxy that takes every connection makes all ports look open."""
    return any(answers.get((host, port), Dialled(open=False)).open for port in _NOBODYS)


def findings(plan: Plan, answers: Answers) -> Iterator[Finding]:
    """Ports that answer though the plan lets nobody from here in. One finding a host."""
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
        if not wide:
            continue
        names = ", ".join(f"{use.name} ({use.first})" for use, _ in wide)
        bare = [f"{use.name}: {found.http}" for use, found in wide if " 200" in found.http]
        yield Finding(
            "security.exposed", "security", host.name,
            expected=f"no answer to {wide[0][1].source}, which is no host of the cluster",
            found=f"{names} answer" + (f"; without a token: {', '.join(bare)}" if bare else ""),
            evidence=f"connect {wide[0][1].address or host.address}:{wide[0][0].first} "
            f"from {wide[0][1].source}: open",
            fix=on(host.name, f"systemctl restart {paths.FIREWALL_UNIT}"),
        )  # fmt: skip


def _may_use_api(plan: Plan, source: str) -> bool:
    allowed = [
        network
        for rule in plan.hosts[plan.head].allow
        if plan.api_port in rule.ports
        for network in rule.sources
    ]
    return any(IPv4Address(source) in IPv4Network(network) for network in allowed)


def keyless(plan: Plan, description: str) -> Iterator[Finding]:
    """An API without a key, open to addresses of the internet."""
    wide = [
        network
        for rule in plan.hosts[plan.head].allow
        if plan.api_port in rule.ports
        for network in rule.sources
        if not IPv4Network(network).is_private
    ]
    if not plan.api_key and wide:
        yield Finding(
            "security.keyless", "security", plan.head,
            expected="an API key where the API is open beyond private networks",
            found=f"secrets.api_key is none, and {', '.join(wide)} may use the API",
            evidence=f"{description}: secrets.api_key: none",
            fix=on("here", f"sed -i 's/^\\( *api_key:\\) none/\\1 generate/' {description}"),
        )  # fmt: skip
