"""Programs of this machine that reach a host over its own SSH settings."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from pyinfra.api.host import Host

CONNECT_TIMEOUT_S = 15


def ssh_options(host: Host) -> list[str]:
    """Options of `ssh` that lead to `host` as pyinfra itself reaches it."""
    data = host.data
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    # A host that lost power closes no connection.
    options += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
    options += ["-o", f"StrictHostKeyChecking={data.get('ssh_strict_host_key_checking') or 'yes'}"]
    if data.get("ssh_config_file"):
        options += ["-F", data.get("ssh_config_file")]
    if data.get("ssh_known_hosts_file"):
        options += ["-o", f"UserKnownHostsFile={data.get('ssh_known_hosts_file')}"]
    if data.get("ssh_key"):
        options += ["-i", str(Path(data.get("ssh_key")).expanduser())]
    if data.get("ssh_port"):
        options += ["-p", str(data.get("ssh_port"))]
    if data.get("ssh_user"):
        options += ["-l", data.get("ssh_user")]
    return options


def ssh_command(host: Host, *words: str) -> list[str]:
    """`ssh … HOST COMMAND`, as root on the host."""
    sudo = ["sudo", "-n"] if host.data.get("_sudo") else []
    line = " ".join(shlex.quote(word) for word in (*sudo, *words))
    return ["ssh", *ssh_options(host), address(host), line]


def address(host: Host) -> str:
    """The name or address that SSH dials."""
    return str(host.data.get("ssh_hostname") or host.name)


def failed(host: Host, step: str, command: list[str], words: str) -> bool:
    """Say on the console that `step` failed, in the command's own words. Returns False."""
    host.log_styled(f"{step} failed: {words.strip() or 'no words'}", fg="red")
    host.log(f"the command was: {shlex.join(command)}")
    return False


def run(host: Host, step: str, command: list[str], timeout_s: float) -> bool:
    """Run a program of this machine; on failure say what it said."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return failed(host, step, command, f"no answer within {timeout_s:.0f} s")
    return done.returncode == 0 or failed(host, step, command, done.stderr or done.stdout)
