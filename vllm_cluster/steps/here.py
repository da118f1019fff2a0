"""What a step needs to know of the host it runs on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.state import State
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.context import host

from vllm_cluster.control.context import Context, context
from vllm_cluster.facts.network import Interfaces
from vllm_cluster.plan import HostPlan, Plan


def known() -> Context:
    """The cluster's context, read once a process."""
    return context(Path(host.data.description))


def context_of() -> Callable[[], Context]:
    """The context as it is when it is asked for: a run finds out which model a revision is."""
    file = Path(host.data.description)
    return lambda: context(file)


def plan() -> Plan:
    """The cluster's plan."""
    return known().plan


def this() -> HostPlan:
    """This host's part of the plan."""
    return plan().hosts[host.name]


# Interfaces by host, for one run: two steps write files that name it.
_interfaces: WeakKeyDictionary[State, dict[str, str]] = WeakKeyDictionary()


def interface() -> str:
    """The interface that holds this host's fabric address: declared, or asked for once a run."""
    declared, address = this().interface, this().address
    if declared is not None:
        return declared
    known_ = _interfaces.setdefault(host.state, {})
    if host.name not in known_:
        found = host.get_fact(Interfaces).get(address)
        if found is None:
            raise PyinfraError(f"{host.name}: no interface holds {address}, its fabric address")
        known_[host.name] = found
    return known_[host.name]


def send_at_once() -> None:
    """Set TCP_NODELAY on the connection; call it first in a deploy.

    paramiko leaves Nagle's algorithm on, which costs 40 ms a command: a run of forty commands
    took 4.5 s with it and 1.1 s without.
    """
    connector = host.connector
    if not isinstance(connector, SSHConnector) or connector.client is None:
        return
    transport = connector.client.get_transport()
    # Behind a ProxyCommand there is a pipe instead of a socket.
    if transport is not None and isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
