"""From a description to what the templates of a host's seed are filled with. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from vllm_cluster.spec import Cluster, DescriptionError
from vllm_cluster.spec.install_model import Card, Install, Machine

Kind = Literal["autoinstall", "preseed", "cloud-init"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_CODENAMES = {"debian-12": "bookworm", "debian-13": "trixie"}
# Kernels that a distribution packages under this name: 6.1.0-28-amd64, 6.8.0-90-generic.
_KERNEL = re.compile(r"^[0-9]+\.[0-9]+[0-9.]*[-+][a-z0-9.+-]*(amd64|arm64|generic|generic-64k)$")
_DEBIAN = "http://deb.debian.org/debian"


@dataclass(frozen=True)
class HostKey:
    """An SSH host key made here: the private half as OpenSSH writes it, and the public line."""

    private: str
    public: str


@dataclass(frozen=True)
class Mirror:
    """A mirror as Debian's installer wants it told."""

    protocol: str
    host: str
    directory: str


@dataclass(frozen=True)
class Values:
    """All that the templates of one host's seed read."""

    cluster: str
    host: str
    instance: str
    install: Install
    machine: Machine
    user: str
    keys: tuple[str, ...]
    data_devices: tuple[str, ...]
    kernel_package: str
    host_key: HostKey | None

    @property
    def home(self) -> str:
        """The home directory of the user that is let in."""
        return "/root" if self.user == "root" else f"/home/{self.user}"

    @property
    def first(self) -> Card:
        """The card with the default route, else the first: the one that the installer uses."""
        cards = self.machine.cards
        return next((card for card in cards if card.gateway), cards[0])

    @property
    def others(self) -> tuple[Card, ...]:
        """All cards but the first."""
        return tuple(card for card in self.machine.cards if card != self.first)

    @property
    def release(self) -> str:
        """12, 13, 22.04 or 24.04."""
        return self.install.system.partition("-")[2]

    @property
    def codename(self) -> str:
        """bookworm or trixie; empty for Ubuntu, whose installer brings its own release alone."""
        return _CODENAMES.get(self.install.system, "")

    @property
    def mirror(self) -> Mirror:
        """Debian's mirror."""
        parts = urlsplit(self.install.mirror or _DEBIAN)
        return Mirror(parts.scheme, parts.netloc, parts.path or "/")


def default_kind(cluster: Cluster) -> Kind:
    """The distribution's own installer. Raises DescriptionError without `install`."""
    return "preseed" if section(cluster).system.startswith("debian") else "autoinstall"


def section(cluster: Cluster) -> Install:
    """The section `install`. Raises DescriptionError where the description has none."""
    install = cluster.description.install
    if install is None:
        accepted = "install with system and hosts; docs/rebuild.md has an example"
        raise DescriptionError(
            cluster.file, [cluster.problem("install", found="nothing", accepted=accepted)]
        )
    return install


def values(
    cluster: Cluster, host: str, kind: Kind, *, host_key: HostKey | None = None, kernel: str = ""
) -> Values:
    """What the seed of `host` says. `kernel` is the release that a lock names, as `uname -r` does.

    Raises DescriptionError where the description does not tell it all.
    """
    install = section(cluster)
    machine = install.hosts.get(host)
    found = accepted = ""
    path = ["install", "hosts"]
    if machine is None:
        found, accepted = f"nothing for {host}", f"{host} with its disk and cards"
    elif kind != "cloud-init" and kind != default_kind(cluster):
        path = ["install", "system"]
        found = f"{install.system}, whose installer reads no {kind}"
        accepted = f"--kind {default_kind(cluster)}, or --kind cloud-init for a cloud image"
    keys = tuple(install.authorized_keys) or _own_key(cluster)
    if not keys:
        path = ["install", "authorized_keys"]
        found = "nothing, and no public key beside ssh.key"
        accepted = "a list of public SSH keys: no password will let anybody in"
    if found or machine is None:
        raise DescriptionError(
            cluster.file, [cluster.problem(*path, found=found, accepted=accepted)]
        )
    disks = cluster.description.storage.disks.values()
    return Values(
        cluster=cluster.description.cluster,
        host=host,
        instance=f"{cluster.description.cluster}-{host}",
        install=install,
        machine=machine,
        user=install.user or cluster.description.ssh.user,
        keys=keys,
        data_devices=tuple(_path(d.devices[host]) for d in disks if host in d.devices),
        kernel_package=f"linux-image-{kernel}" if _KERNEL.match(kernel) else "",
        host_key=host_key,
    )


def _own_key(cluster: Cluster) -> tuple[str, ...]:
    """The public half of the key that this machine uses."""
    if cluster.description.ssh.key is None:
        return ()
    private = cluster.local(cluster.description.ssh.key)
    try:
        return (private.with_name(f"{private.name}.pub").read_text(encoding="utf-8").strip(),)
    except (OSError, UnicodeDecodeError):
        return ()


def _path(device: str) -> str:
    """`UUID=x` as the path that udev gives it."""
    return device.replace("UUID=", "/dev/disk/by-uuid/")


def continued(text: str) -> str:
    """Lines of shell as one preseed value: debconf joins lines that end in a backslash."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " \\\n  ".join(lines)


def quoted(text: str) -> str:
    """A word for a shell."""
    return shlex.quote(text)
