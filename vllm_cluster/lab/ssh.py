"""The lab's own SSH files: nothing of the user's ~/.ssh is read or written."""

from __future__ import annotations

import shutil
from pathlib import Path

from vllm_cluster.lab import network
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import run
from vllm_cluster.lab.storage import host_key


def ensure_key(layout: Layout) -> None:
    """The key pair that root and ops let in on every host."""
    if not layout.key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(layout.key)])


def write_known_hosts(layout: Layout, hosts: list[HostLayout]) -> None:
    """Each host's key under its name and its address (paramiko looks for the address)."""
    lines = []
    for host in hosts:
        kind, key = host_key(host).read_text().split()[:2]
        lines.append(f"{host.name},{host.address} {kind} {key}\n")
    _replace(layout.known_hosts, "".join(lines))


def write_config(layout: Layout, hosts: list[HostLayout]) -> None:
    """A configuration for `ssh -F` and for pyinfra's `ssh_config_file`.

    The connection starts in the switch's namespace. `nodelay` matters: without it every command
    over an SSH connection that is already open waits some 40 ms for a delayed acknowledgement.
    """
    socat = shutil.which("socat") or "socat"
    enter = " ".join(network.enter(layout.switch))
    via = f"{enter} {socat} - TCP:%h:%p,nodelay,connect-timeout=10"
    text = "".join(f"Host {h.name}\n    HostName {h.address}\n" for h in hosts)
    text += (
        "Host *\n    User root\n"
        f"    IdentityFile {layout.key}\n    IdentitiesOnly yes\n    IdentityAgent none\n"
        f"    UserKnownHostsFile {layout.known_hosts}\n    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n    UpdateHostKeys no\n    LogLevel ERROR\n"
        f"    ProxyCommand {via}\n"
    )
    _replace(layout.ssh_config, text)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(path)
