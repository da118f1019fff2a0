"""Where a lab's parts are and what they are called. Nothing here touches the machine."""

from __future__ import annotations

import ipaddress
import os
import re
import string
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.lab.errors import WrongValueError

MAX_HOSTS = 16
RELEASES = ("bookworm", "trixie")
SUBNET = ipaddress.IPv4Network("10.77.0.0/24")
CONTROL_ADDRESS = "10.77.0.1"
OUTSIDE_ADDRESS = "10.77.0.200"
FIRST_HOST = 11  # node-a is .11, node-p is .26
APT_PORT = 3142
BRIDGE = "br0"
OUTSIDE_INTERFACE = "eth0"
OWNERS = Path("/run/vllm-cluster-lab")
"""One file a lab, naming the folder that it belongs to: namespaces are the machine's, not ours."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


def project_root() -> Path:
    """The folder that holds `.lab` and `.cache`: the checkout, else the working directory.

    VLLM_CLUSTER_LAB_ROOT names another one, for a checkout on a file system that overlayfs
    cannot use as its upper layer.
    """
    named = os.environ.get("VLLM_CLUSTER_LAB_ROOT")
    if named:
        return Path(named).resolve()
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def host_names(count: int) -> list[str]:
    """node-a, node-b, … for 1 to 16 hosts."""
    if not 1 <= count <= MAX_HOSTS:
        raise WrongValueError(f"{count} hosts: a lab has 1 to {MAX_HOSTS}")
    return [f"node-{letter}" for letter in string.ascii_lowercase[:count]]


@dataclass(frozen=True)
class HostLayout:
    """One host's names, addresses and paths."""

    name: str
    address: str
    mac: str
    namespace: str
    directory: Path

    @property
    def root(self) -> Path:
        """Where its file system is mounted on this machine."""
        return self.directory / "root"

    @property
    def upper(self) -> Path:
        """What it changed of its file system: its disk."""
        return self.directory / "upper"

    @property
    def work(self) -> Path:
        """overlayfs's own folder."""
        return self.directory / "work"

    @property
    def stores(self) -> dict[str, Path]:
        """Folders on a real file system for what overlayfs cannot carry, by their path inside.

        Docker's overlay2 on an overlay fails: `failed to mount overlay: invalid argument`.
        """
        return {
            "/var/lib/docker": self.directory / "docker",
            "/var/lib/containerd": self.directory / "containerd",
        }

    @property
    def supervisor_pid(self) -> Path:
        """The record of the process that keeps the host powered."""
        return self.directory / "supervisor.pid"

    @property
    def nspawn_pid(self) -> Path:
        """The record of the systemd-nspawn that runs now."""
        return self.directory / "nspawn.pid"

    @property
    def netns(self) -> Path:
        """The file that holds its network namespace."""
        return Path("/run/netns") / self.namespace


@dataclass(frozen=True)
class Layout:
    """A lab's names and paths, all of them following from its name and the project's folder."""

    name: str
    home: Path
    interface: str = "fabric0"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise WrongValueError(
                f"lab name {self.name!r}: lower-case letters, digits and hyphens, "
                "starting with a letter, at most 20"
            )
        if not re.fullmatch(r"[a-z][a-z0-9._-]{0,14}", self.interface) or self.interface == "lo":
            raise WrongValueError(f"interface {self.interface!r}: at most 15 characters, not lo")
        if set(str(self.home)) & set(":,\\ '\""):
            raise WrongValueError(
                f"{self.home}: a path with : , space, quote or backslash does not mount"
            )

    @property
    def directory(self) -> Path:
        """`.lab/NAME`: everything the lab keeps, removed by down."""
        return self.home / ".lab" / self.name

    @property
    def cache(self) -> Path:
        """`.cache`: what outlives a lab."""
        return self.home / ".cache"

    @property
    def logs(self) -> Path:
        """The consoles of the hosts and the package proxy's log."""
        return self.directory / "log"

    @property
    def switch(self) -> str:
        """The namespace of the bridge and of the control side's address."""
        return f"vc-{self.name}-sw"

    @property
    def outside(self) -> str:
        """The namespace of an address that is on the network but is no host."""
        return f"vc-{self.name}-out"

    @property
    def owner(self) -> Path:
        """The file that says which folder this lab's namespaces belong to."""
        return OWNERS / self.name

    @property
    def key(self) -> Path:
        """The private SSH key that every host lets in."""
        return self.directory / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The hosts' SSH keys."""
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """The SSH client's configuration for this lab."""
        return self.directory / "ssh_config"

    @property
    def description(self) -> Path:
        """lab.json."""
        return self.directory / "lab.json"

    @property
    def proxy_pid(self) -> Path:
        """The record of the package proxy's process."""
        return self.directory / "apt-proxy.pid"

    def host(self, name: str) -> HostLayout:
        """The layout of one host. Raises WrongValueError for a name that is none of the sixteen."""
        names = host_names(MAX_HOSTS)
        if name not in names:
            raise WrongValueError(f"{name!r} is no host of a lab: {names[0]} … {names[-1]}")
        number = FIRST_HOST + names.index(name)
        return HostLayout(
            name=name,
            address=str(SUBNET[number]),
            mac=f"02:4c:41:42:00:{number:02x}",  # locally administered, the same after a reboot
            namespace=f"vc-{self.name}-{name}",
            directory=self.directory / "hosts" / name,
        )

    def every_host(self) -> list[HostLayout]:
        """All hosts a lab of this name could have."""
        return [self.host(name) for name in host_names(MAX_HOSTS)]
