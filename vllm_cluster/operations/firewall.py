"""The firewall, through whatever holds it. Rules that shut the operator out undo themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.facts.firewall import POLICY, Firewall, FirewallState
from vllm_cluster.operations import packages, ssh
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan import Allow, admitted, paths, ufw

LOADER = f"{paths.SCRIPTS}/firewall-load"

Commands = Generator[StringCommand | FunctionCommand, None, None]


@dataclass(frozen=True)
class Rules:
    """What a host lets in, by the ports that sshd has, and that in the words of each tool."""

    allow: Callable[[tuple[int, ...]], tuple[Allow, ...]]
    nft: Callable[[tuple[Allow, ...]], str]
    firewalld: Callable[[tuple[Allow, ...]], str]


def _no() -> bool:
    return False


@operation()
def enforced(rules: Rules, way_back_s: int, moves: Callable[[], bool] = _no) -> Commands:
    """Bring the rules in force; keep them only if a new SSH connection still comes through.

    Through ufw or firewalld where one is active, else in an nftables table of our own. Nothing
    of anybody else's is ever flushed. Where a role `moves`, whom it let in stays let in.
    """
    have = host.get_fact(Firewall)
    words = _obstacle(have)
    allow = rules.allow(have.ssh_ports)
    if moves():
        allow = admitted.widened(allow, have.admits)
    if have.ufw:
        words = words or ufw.obstacle(have.ufw_rules, allow)
    if words:
        yield refuse(words)
        return
    if have.ufw:
        yield from _through_ufw(have, allow, way_back_s)
    elif have.firewalld:
        yield from _through_firewalld(have, rules.firewalld(allow), way_back_s)
    else:
        yield from _own_table(have, rules.nft(allow), way_back_s)
    if have.gcs:
        # Whoever holds the firewall, that table is of ours and the head's unit put it up.
        host.log(f"table inet vllm_cluster_gcs: {have.gcs}")
        yield StringCommand(LOADER, "again")


@operation()
def narrowed(rules: Rules, way_back_s: int, moved: Callable[[], bool]) -> Commands:
    """Where a role `moved`, let in nobody any more on behalf of the one that was there."""
    if not moved():
        host.noop("no role has moved")
        return
    yield from enforced._inner(rules=rules, way_back_s=way_back_s)


def _obstacle(have: FirewallState) -> str:
    if have.ufw and have.firewalld:
        return "ufw and firewalld are both active; switch one off, and run again"
    if have.ufw and "deny (incoming)" not in have.ufw_default.replace("reject (", "deny ("):
        return (
            f"ufw is active but lets in what it does not know ({have.ufw_default}); "
            "`ufw default deny incoming` closes it, `ufw disable` leaves the firewall to this run"
        )
    if have.firewalld and have.open_zones:
        zone = have.open_zones[0]
        return (
            f"firewalld's zone {zone} is in use and lets in whatever comes, past any list of ours; "
            f"`firewall-cmd --permanent --zone={zone} --set-target=default && firewall-cmd "
            "--reload` closes it (let SSH into it first)"
        )
    return ""


def _own_table(have: FirewallState, text: str, way_back_s: int) -> Commands:
    digest = hashlib.sha256(text.encode()).hexdigest()
    if not have.nft:
        yield from packages.installed._inner(packages=["nftables"])
    for chain in have.drops:
        host.log(
            f"the chain {chain} of this host drops what it does not know; it must let in what "
            f"{paths.FIREWALL} lists, since a packet must pass every chain"
        )
    if have.pending:
        host.log(f"{paths.FIREWALL}: an attempt that nobody confirmed")
    elif have.file != digest:
        host.log(f"{paths.FIREWALL}: content differs")
    elif have.confirmed_file != digest:
        host.log(f"{paths.FIREWALL}: not confirmed yet")
    elif have.table != have.confirmed_table:
        host.log("table inet vllm_cluster: loaded rules differ")
    else:
        host.noop("the firewall is as planned")
        return
    yield from _tried("nft", text, way_back_s)


def _through_ufw(have: FirewallState, allow: tuple[Allow, ...], way_back_s: int) -> Commands:
    lines = ufw.changes(have.ufw_rules, allow)
    if lines or have.pending:
        host.log(f"ufw is active: {len(lines)} of its rules change")
        for line in lines:
            host.log(f"ufw {line}")
        # Without changes too: what nobody confirmed is tried once more, and confirmed.
        yield from _tried("ufw", "".join(f"{line}\n" for line in lines) or "\n", way_back_s)
    yield from _own_table_gone(have, "ufw lets in what the plan lists, and no more of ours")


def _through_firewalld(have: FirewallState, text: str, way_back_s: int) -> Commands:
    if have.policy != hashlib.sha256(text.encode()).hexdigest() or have.pending:
        host.log(f"firewalld is active: {POLICY} differs")
        yield from _tried("firewalld", text, way_back_s)
    elif not have.policy_live:
        host.log(f"firewalld is active and has not read {POLICY}")
        yield from _tried("firewalld", text, way_back_s)
    yield from _own_table_gone(have, "firewalld lets in what the plan lists")


def _own_table_gone(have: FirewallState, otherwise: str) -> Commands:
    # After the other's rules are in force: two tables that both drop would both have to let in.
    if have.held or have.confirmed_file:
        host.log("table inet vllm_cluster: removed, another tool holds the firewall now")
        yield StringCommand(LOADER, "drop")
    else:
        host.noop(otherwise)


def _tried(backend: str, text: str, way_back_s: int) -> Commands:
    yield StringCommand(f"{LOADER} try {backend} {way_back_s}", _stdin=text)
    yield FunctionCommand(_confirm, (way_back_s,), {})


def _confirm(state: State, host: Host, way_back_s: int) -> bool:  # noqa: ARG001  pyinfra's form
    # A connection of its own, not one that a ControlMaster of the operator's holds open: what is
    # established already comes through any rules and would prove nothing.
    program, *rest = ssh.ssh_command(host, LOADER, "confirm")
    command = [program, "-o", "ControlMaster=no", "-o", "ControlPath=none", *rest]
    step = f"a new SSH connection through the new firewall (undone within {way_back_s} s)"
    return ssh.run(host, step, command, timeout_s=ssh.CONNECT_TIMEOUT_S + 15)
