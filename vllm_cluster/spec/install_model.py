"""How a machine gets its operating system: what the installers of Debian and Ubuntu are told.

Optional: only `vllm-cluster seed` and `rebuild` read it. There is no key for a password; the
system lets in SSH keys alone.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Interface
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from vllm_cluster.spec.types import Address, HostName

# Names of whole disks that udev gives by serial number or slot. A partition ends in -partN; names
# such as /dev/sda go to another disk at the next boot, and an installer would wipe that one.
_DISK = re.compile(r"^/dev/disk/by-(id|path)/[A-Za-z0-9._:+@=-]+$")
_PUBLIC_KEY = re.compile(
    r"^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)"
    r"@openssh\.com) AAAA[A-Za-z0-9+/=]+( [A-Za-z0-9 ._@:+=-]*)?$"
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _disk(value: str) -> str:
    if not _DISK.match(value) or re.search(r"-part[0-9]+$", value):
        raise ValueError("not a whole disk by a name that survives a reboot")
    return value


def _public_key(value: str) -> str:
    if not _PUBLIC_KEY.match(value):
        raise ValueError("not a line of authorized_keys without options")
    return value


def _lower(value: str) -> str:
    return value.lower()


Interface = Annotated[IPv4Interface, PlainSerializer(str, return_type=str)]
Mac = Annotated[str, Field(pattern=r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$"), AfterValidator(_lower)]


class Card(_Section):
    """A network card, found by its MAC address or by its name, and what it is called on the net."""

    mac: Mac | None = Field(None, description="the card's MAC address, such as 52:54:00:12:34:56")
    name: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]{1,15}$", description="the card's name, such as enp1s0f0"
    )
    address: Interface = Field(
        description="IPv4 address and prefix length, such as 192.168.1.11/24"
    )
    gateway: Address | None = Field(None, description="the IPv4 address of the default router")
    dns: list[Address] = Field(default_factory=list, description="name servers by IPv4 address")
    mtu: int | None = Field(
        None, strict=True, ge=576, le=65535, description="bytes, 576 to 65535, such as 9000"
    )


class Machine(_Section):
    """One machine: where the system goes, and how it is on the network."""

    disk: Annotated[str, AfterValidator(_disk)] = Field(
        description="the whole disk that gets the system and loses what is on it: its name under "
        "/dev/disk/by-id or /dev/disk/by-path"
    )
    cards: list[Card] = Field(
        min_length=1, description="a list of cards, each with mac or name, and address"
    )


class Install(_Section):
    """The operating system of the hosts."""

    system: Literal["debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04"] = Field(
        description="debian-12, debian-13, ubuntu-22.04 or ubuntu-24.04"
    )
    user: str | None = Field(
        None,
        pattern=r"^[a-z_][a-z0-9_-]{0,31}$",
        description="the user that is made, with sudo and SSH keys; default: ssh.user",
    )
    authorized_keys: list[Annotated[str, AfterValidator(_public_key)]] = Field(
        default_factory=list,
        description="public SSH keys that are let in, such as 'ssh-ed25519 AAAA… me'; "
        "default: that of ssh.key",
    )
    time_zone: str = Field(
        "Etc/UTC", pattern=r"^[A-Za-z0-9_+/-]+$", description="a time zone, such as Europe/Oslo"
    )
    mirror: str | None = Field(
        None,
        pattern=r"^https?://[A-Za-z0-9._:-]+(/[A-Za-z0-9._~/-]*)?$",
        description="a mirror of the distribution: http://HOST/PATH; default: its own",
    )
    then: Literal["reboot", "poweroff"] = Field(
        "reboot", description="reboot or poweroff, once the system is installed"
    )
    host_key: Literal["machine", "seed"] = Field(
        "machine",
        description="machine (makes its own SSH host key) or seed (is made here and carried in "
        "the seed, so that it is known before the first connection)",
    )
    hosts: dict[HostName, Machine] = Field(
        min_length=1, description="host names, each with its disk and cards"
    )
