"""The cluster's own nftables table. A rule set that shuts the operator out undoes itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.facts.firewall import Firewall
from vllm_cluster.operations import ssh
from vllm_cluster.plan import paths

# Longer than a slow login and than the connection time-out below, short enough to wait for.
WAY_BACK_S = 45


@operation()
def enforced(
    rules: Callable[[tuple[int, ...]], str],
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Load `rules(ports of sshd)`, keep them only if a new SSH connection still comes through."""
    have = host.get_fact(Firewall)
    text = rules(have.ssh_ports)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if have.file != digest:
        host.log(f"{paths.FIREWALL}: content differs")
    elif have.confirmed_file != digest:
        host.log(f"{paths.FIREWALL}: not confirmed yet")
    elif have.table != have.confirmed_table:
        host.log("table inet vllm_cluster: loaded rules differ")
    else:
        host.noop("the firewall is as planned")
        return
    yield StringCommand(f"{paths.SCRIPTS}/firewall-load {WAY_BACK_S}", _stdin=text)
    yield FunctionCommand(_confirm, (), {})


def _confirm(state: State, host: Host) -> bool:  # noqa: ARG001  pyinfra passes both
    # A connection of its own: the one pyinfra holds is established and would prove nothing.
    command = ssh.ssh_command(host, f"{paths.SCRIPTS}/firewall-load", "confirm")
    step = f"a new SSH connection through the new firewall (undone in {WAY_BACK_S} s)"
    return ssh.run(host, step, command, timeout_s=ssh.CONNECT_TIMEOUT_S + 15)
