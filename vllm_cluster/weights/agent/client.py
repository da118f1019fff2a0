"""Asks a peer: small questions, and chunks over a connection that stays open."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from vllm_cluster.weights.agent import wire
from vllm_cluster.weights.agent.tree import BLOCK_BYTES, Tree
from vllm_cluster.weights.manifest import Chunk

_CONNECT_S = 4.0


@dataclass(frozen=True)
class Caller:
    """Who asks: its name and fabric address, the job's token and model, how long silence may be."""

    name: str
    address: str
    token: str
    identity: str
    silence_s: float

    def connect(self, peer: wire.Peer, timeout_s: float) -> socket.socket:
        """From our own fabric address: the route may not pick another card."""
        sock = socket.create_connection(
            (peer.address, peer.port), min(timeout_s, _CONNECT_S), (self.address, 0)
        )
        # A kernel time-out, not settimeout(): that would make the socket non-blocking and cost a
        # poll for every read.
        sock.settimeout(None)
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def ask(self, peer: wire.Peer, method: str, what: str, timeout_s: float) -> bytes:
        """One request on a connection of its own. Raises OSError or WireError."""
        with closing(self.connect(peer, timeout_s)) as sock:
            sock.sendall(wire.request(method, f"/v1/{self.identity}/{what}", peer, self.token))
            head = wire.read_head(sock)
            if head is None:
                raise wire.WireError("closed the connection: this host is not on its list")
            body = head.rest
            while len(body) < head.length:
                more = sock.recv(1 << 20)
                if not more:
                    raise wire.WireError("closed inside an answer")
                body += more
        if _status(head) != wire.OK:
            raise wire.WireError(f"{head.start}: {body[:200].decode(errors='replace')}")
        return body

    def state(self, peer: wire.Peer, timeout_s: float = 2.0) -> dict[str, object] | None:
        """What the peer says of itself, None when it does not answer."""
        try:
            return _object(self.ask(peer, "GET", "state", timeout_s))
        except (OSError, wire.WireError):
            return None

    def tell(self, peer: wire.Peer, phase: str) -> dict[str, object]:
        """Say our own phase, hear the peer's. Raises OSError or WireError."""
        what = f"peer?host={self.name}&phase={phase}"
        return _object(self.ask(peer, "POST", what, 2.0))


class Link:
    """A kept connection over which chunks are asked for ahead and received in order."""

    def __init__(self, caller: Caller, peer: wire.Peer) -> None:
        self.peer = peer
        self._caller = caller
        self._sock = caller.connect(peer, caller.silence_s)
        self._spare = b""
        self._buffer = bytearray(BLOCK_BYTES)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.close()

    def ask(self, chunk: Chunk, *, wait_s: float, check: bool) -> None:
        what = f"chunk/{chunk.index}?wait={wait_s:g}{'&check=1' if check else ''}"
        target = f"/v1/{self._caller.identity}/{what}"
        self._sock.sendall(wire.request("GET", target, self.peer, self._caller.token))

    def receive(self, chunk: Chunk, tree: Tree, paced: Callable[[int], None]) -> int:
        """Take the answer for `chunk` into the tree; hash it on the way.

        Returns the status: OK when the bytes are right, WRONG when they are not, WAITING, or
        DAMAGED when the peer says that its own copy is. Raises OSError or WireError when the
        connection is of no more use, WeightsError when the disk is.
        """
        head = wire.read_head(self._sock, self._spare)
        if head is None:
            raise wire.WireError("closed the connection")
        status = _status(head)
        if status != wire.OK:
            body = head.rest
            while len(body) < head.length:
                more = self._sock.recv(wire.MAX_HEAD_BYTES)
                if not more:
                    raise wire.WireError("closed inside an answer")
                body += more
            self._spare = body[head.length :]
            if status not in {wire.WAITING, wire.DAMAGED}:
                raise wire.WireError(head.start)
            return status
        if head.length != chunk.length:
            raise wire.WireError(f"sent {head.length} bytes for a chunk of {chunk.length}")
        return wire.OK if self._body(head, chunk, tree, paced) else wire.WRONG

    def _body(
        self, head: wire.Head, chunk: Chunk, tree: Tree, paced: Callable[[int], None]
    ) -> bool:
        digest = hashlib.sha256()
        view = memoryview(self._buffer)
        early = memoryview(head.rest)[: chunk.length]
        self._spare = head.rest[len(early) :]
        position = 0
        if early:
            digest.update(early)
            tree.write(chunk, 0, early)
            position = len(early)
        while position < chunk.length:
            wanted = view[: min(BLOCK_BYTES, chunk.length - position)]
            # The whole block in one call: one wake-up and one write for 256 KiB, not for a packet.
            count = self._sock.recv_into(wanted, 0, socket.MSG_WAITALL)
            if count == 0:
                raise wire.WireError("closed inside a chunk")
            digest.update(wanted[:count])
            tree.write(chunk, position, wanted[:count])
            position += count
            paced(count)
        return digest.hexdigest() == chunk.sha256


class Pace:
    """A bandwidth limit shared by the connections of one host. Bytes per second; None: none."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._rate = bytes_per_s
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            # A tenth of a second may be made good after a pause, no more.
            self._free_at = max(self._free_at, now - 0.1) + count / self._rate
            wait_s = self._free_at - now
        if wait_s > 0:
            time.sleep(wait_s)


def _status(head: wire.Head) -> int:
    parts = head.start.split(" ")
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        raise wire.WireError(f"not HTTP: {head.start[:60]!r}")
    return int(parts[1])


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError as exc:
        raise wire.WireError(f"not JSON: {body[:60]!r}") from exc
    if not isinstance(value, dict):
        raise wire.WireError("not a JSON object")
    return value
