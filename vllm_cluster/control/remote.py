"""Hosts reached from this machine over OpenSSH, with the description's own settings."""

from __future__ import annotations

from collections.abc import Callable

from vllm_cluster.plan import HostPlan
from vllm_cluster.spec import Cluster

CONNECT_TIMEOUT_S = 6


def ssh_options(cluster: Cluster) -> list[str]:
    """`ssh` with the options of every host but the user, the port and the name."""
    ssh = cluster.description.ssh
    argv = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    argv += ["-o", f"StrictHostKeyChecking={ssh.host_keys}", "-o", "LogLevel=ERROR"]
    # A host that dies in the middle must not keep anybody waiting.
    argv += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"]
    if ssh.config_file:
        argv += ["-F", str(cluster.local(ssh.config_file))]
    if ssh.known_hosts_file:
        argv += ["-o", f"UserKnownHostsFile={cluster.local(ssh.known_hosts_file)}"]
    if ssh.key:
        argv += ["-i", str(cluster.local(ssh.key))]
    return [*argv, "-p", str(ssh.port), "-l", ssh.user]


def ssh_argv(cluster: Cluster, host: HostPlan) -> list[str]:
    """`ssh … HOST`, to which a command is added."""
    return ssh_to(cluster, host.ssh)


def ssh_to(cluster: Cluster, address: str) -> list[str]:
    """The same for an address that may be of no host of the description any more."""
    return [*ssh_options(cluster), address]


def root_command(cluster: Cluster, command: str) -> str:
    """`command` as root on the host, for a user that may `sudo -n`."""
    return command if cluster.description.ssh.user == "root" else f"sudo -n {command}"


def as_root(cluster: Cluster, host: HostPlan) -> Callable[[str], list[str]]:
    """From a shell command to the argument list that runs it on `host` as root."""

    def argv(command: str) -> list[str]:
        return [*ssh_argv(cluster, host), root_command(cluster, command)]

    return argv
