"""The few lines of HTTP/1.1 that the transfer needs; curl speaks it too.

    GET  /v1/<identity>/manifest            the manifest's bytes
    GET  /v1/<identity>/chunk/<n>?wait=4    a verified chunk; waits up to 4 s for it
    GET  /v1/<identity>/state               {"host", "phase", "have", "chunks"}
    POST /v1/<identity>/peer?host=&phase=   "I am done", "I gave up"; answers like state

All with `Authorization: Bearer <token>`. Chunks are named by number, so no path ever comes from
the wire. http.server and http.client would do, at five times the processor time a request.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass

MAX_HEAD_BYTES = 8192
_IPV4_IN_IPV6 = b"\0" * 10 + b"\xff\xff"
WRONG = 0  # not on the wire: a chunk came whose hash is another
OK, UNAUTHORIZED, NOT_FOUND, DAMAGED, WAITING = 200, 401, 404, 409, 503
_REASONS = {
    OK: "OK",
    UNAUTHORIZED: "Unauthorized",
    NOT_FOUND: "Not Found",
    DAMAGED: "Conflict",
    WAITING: "Service Unavailable",
}


class WireError(Exception):
    """The other side is gone or does not speak this protocol."""


@dataclass(frozen=True)
class Peer:
    """A host of the fan-out: its name for messages, its fabric address, its port."""

    name: str
    address: str
    port: int


@dataclass(frozen=True)
class Head:
    """The start line and headers of a message, and the bytes that came after them."""

    start: str
    headers: dict[str, str]
    rest: bytes

    @property
    def length(self) -> int:
        text = self.headers.get("content-length", "0")
        if not text.isdigit():
            raise WireError(f"Content-Length {text!r}")
        return int(text)


def read_head(sock: socket.socket, spare: bytes = b"") -> Head | None:
    """Read up to the empty line. None when the connection closed between messages."""
    data = spare
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD_BYTES:
            raise WireError("the header has no end")
        more = sock.recv(MAX_HEAD_BYTES)
        if not more:
            if data:
                raise WireError("closed inside a header")
            return None
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(lines[0], headers, rest)


def request(method: str, target: str, peer: Peer, token: str) -> bytes:
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {host_port(peer)}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
    ).encode("ascii")


def reply_head(status: int, length: int) -> bytes:
    return (f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {length}\r\n\r\n").encode(
        "ascii"
    )


def reply_json(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    return reply_head(status, len(body)) + body


def host_port(peer: Peer) -> str:
    address = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"{address}:{peer.port}"


def plain_address(address: str) -> str:
    """One spelling per address, IPv4 inside IPv6 undone. Raises ValueError for a name."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        packed = socket.inet_pton(family, address.partition("%")[0])
    except OSError:
        raise ValueError(f"{address!r} is not an address") from None
    if packed.startswith(_IPV4_IN_IPV6) and len(packed) == 16:
        family, packed = socket.AF_INET, packed[12:]
    return socket.inet_ntop(family, packed)
