"""A description as pyinfra's groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_cluster.control import pinned, programs
from vllm_cluster.control.context import context
from vllm_cluster.control.terminal import unanswered
from vllm_cluster.plan import HostPlan
from vllm_cluster.plan.pins import HostPins
from vllm_cluster.spec import Cluster, DescriptionError

Group = list[tuple[str, dict[str, Any]]]


def groups(file: Path) -> tuple[Group, Group]:
    """`head` and `workers` for pyinfra.

    A description that cannot be used ends the program here, with exit code 2 (1: it would
    not work), before any connection, and so does a question that nobody could answer. pyinfra
    would show a traceback for an exception.
    """
    reason = unanswered()
    if reason:
        print(f"refused: {reason}", file=sys.stderr)
        raise SystemExit(2)
    try:
        known = context(file.resolve())
        programs.refuse_missing(known)
        locked = pinned.enforce(known)
    except DescriptionError as error:
        print(error.text(), file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    hosts = known.plan.hosts.values()
    pins = locked.hosts if locked else {}
    head = [_host(known.cluster, host, pins) for host in hosts if host.role == "head"]
    workers = [_host(known.cluster, host, pins) for host in hosts if host.role == "worker"]
    return head, workers


def _host(
    cluster: Cluster, host: HostPlan, pins: Mapping[str, HostPins]
) -> tuple[str, dict[str, Any]]:
    ssh = cluster.description.ssh
    data: dict[str, Any] = {
        "ssh_hostname": host.ssh,
        "ssh_user": ssh.user,
        "ssh_port": ssh.port,
        "ssh_strict_host_key_checking": ssh.host_keys,
        "_sudo": ssh.user != "root",
        # What programs say is read: ufw, apt and bash speak the host's language, and stat writes
        # the decimal point of it.
        "_env": {"LC_ALL": "C"},
        "description": str(cluster.file),
        # Versions that operations.packages installs, and no others.
        "locked_packages": dict(pins[host.name].packages) if host.name in pins else {},
    }
    for name in ("key", "config_file", "known_hosts_file"):
        value = getattr(ssh, name)
        if value is not None:
            data[f"ssh_{name}"] = str(cluster.local(value))
    return host.name, data
