"""Value types that descriptions use: sizes, names, networks, paths, digests."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, StringConstraints

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|KB|MB|GB|TB)?\s*$")
_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# RFC 1123 labels. A name of digits alone is read as an address (1.1.1.1 -> 16843009) by
# inet_aton, so gloo and Ray would dial 0.0.0.x: https://github.com/gpustack/gpustack/issues/4128
_NAME = re.compile(r"^(?!-)[a-z0-9-]{1,63}(?<!-)$")
_LOOPBACK_NAMES = {"localhost", "localhost6", "ip6-localhost", "ip6-loopback", "loopback"}


def parse_size(value: Any) -> Any:
    """`32GiB` to bytes. A bare number is bytes."""
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError("not a size")
    size = float(match[1]) * _UNITS[match[2] or "B"]
    return round(size)


def host_name(value: str) -> str:
    """A host's name: RFC 1123, lower case, neither all digits nor a name of loopback."""
    if value in _LOOPBACK_NAMES:
        raise ValueError("a name of loopback")
    if value.isdigit():
        raise ValueError("digits alone are read as an address")
    if not _NAME.match(value):
        raise ValueError("not a host name")
    return value


def fabric_address(value: ipaddress.IPv4Address) -> ipaddress.IPv4Address:
    """An address that another host can dial."""
    if value.is_loopback or value.is_unspecified or value.is_multicast or value.is_link_local:
        raise ValueError("not an address that another host can reach")
    return value


def written_as_text(value: Any) -> Any:
    """Refuse a bare number: ipaddress would take 3232235786 for 192.168.1.10."""
    if isinstance(value, int):
        raise ValueError("a number; addresses are written with dots")
    return value


def absolute_path(value: str) -> str:
    """An absolute, normalised path below the root."""
    parts = value.split("/")
    if not value.startswith("/") or any(part in {"", ".", ".."} for part in parts[1:]):
        raise ValueError("not an absolute path")
    return _plain(value)


def relative_path(value: str) -> str:
    """A relative path that stays below the directory it is joined to."""
    parts = value.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise ValueError("leaves its directory")
    return _plain(value)


def _plain(value: str) -> str:
    # Colons and commas separate the parts of a docker mount; spaces and quotes would have to
    # survive systemd, a shell and Docker.
    if not re.fullmatch(r"[A-Za-z0-9._/+@=-]+", value):
        raise ValueError("has characters that a mount cannot carry")
    return value


Bytes = Annotated[int, BeforeValidator(parse_size)]
Address = Annotated[
    ipaddress.IPv4Address,
    BeforeValidator(written_as_text),
    AfterValidator(fabric_address),
    PlainSerializer(str, return_type=str),
]
Network = Annotated[
    ipaddress.IPv4Network,
    BeforeValidator(written_as_text),
    PlainSerializer(str, return_type=str),
]
AbsolutePath = Annotated[str, AfterValidator(absolute_path)]
RelativePath = Annotated[str, AfterValidator(relative_path)]
HostName = Annotated[str, AfterValidator(host_name)]
Version = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+(\.\d+)?$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
