"""OpenPGP keys as apt reads them: which key it is, by its fingerprint. No gpg needed anywhere."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)
_PUBLIC_KEY = 6  # RFC 4880, 4.3


def fingerprints(key: bytes) -> list[str]:
    """Fingerprints of the primary keys in `key` (armored or binary), upper-case hex.

    Raises ValueError where `key` holds no OpenPGP packets, or a key that is not version 4
    (RFC 4880, 12.2: SHA-1 over 0x99, the length in two bytes, and the packet).
    """
    found = []
    for tag, body in _packets(binary(key)):
        if tag != _PUBLIC_KEY:
            continue
        if body[:1] != b"\x04":
            raise ValueError("not a version 4 key")
        head = b"\x99" + len(body).to_bytes(2, "big")
        found.append(hashlib.sha1(head + body).hexdigest().upper())  # noqa: S324  RFC 4880
    if not found:
        raise ValueError("no public key in it")
    return found


def binary(key: bytes) -> bytes:
    """`key` without its armor."""
    blocks = _ARMOR.findall(key)
    if not blocks:
        return key
    try:
        return b"".join(_block(block) for block in blocks)
    except binascii.Error as error:
        raise ValueError(f"armor that is not base64: {error}") from error


def armored(key: bytes) -> str:
    """`key` in ASCII armor, as a file whose name ends in .asc holds it."""
    data = binary(key)
    text = base64.b64encode(data).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    check = base64.b64encode(_crc24(data).to_bytes(3, "big")).decode()
    begin, end = ("-----BEGIN", "-----END")
    name = "PGP PUBLIC KEY BLOCK-----"
    return "\n".join([f"{begin} {name}", "", *lines, f"={check}", f"{end} {name}"]) + "\n"


def _block(block: bytes) -> bytes:
    lines = [line.strip() for line in block.splitlines()]
    if b"" in lines:  # headers such as Comment: end with an empty line
        lines = lines[lines.index(b"") + 1 :]
    return base64.b64decode(b"".join(x for x in lines if x[:1] != b"="), validate=True)


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, at, size = _header(data, at)
        yield tag, data[at : at + size]
        at += size


def _header(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, where the body starts, and its length (RFC 4880, 4.2). Partial lengths are refused."""
    first = data[at]
    if not first & 0x80:
        raise ValueError("not OpenPGP packets")
    try:
        if first & 0x40:
            return _new_header(data, at)
        width = (1, 2, 4, 0)[first & 3]
        if not width:
            return (first >> 2) & 15, at + 1, len(data) - at - 1
        size = int.from_bytes(data[at + 1 : at + 1 + width], "big")
        return (first >> 2) & 15, at + 1 + width, size
    except IndexError:
        raise ValueError("a packet that ends early") from None


def _new_header(data: bytes, at: int) -> tuple[int, int, int]:
    tag, one = data[at] & 63, data[at + 1]
    if one < 192:
        return tag, at + 2, one
    if one < 224:
        return tag, at + 3, ((one - 192) << 8) + data[at + 2] + 192
    if one == 255:
        return tag, at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
    raise ValueError("a packet of partial lengths")


def _crc24(data: bytes) -> int:
    """The checksum of the armor (RFC 4880, 6.1)."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF
