"""Passes on verified chunks: bound to one address, to known addresses with the token only."""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from vllm_cluster.weights.agent import wire
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.tree import Tree
from vllm_cluster.weights.manifest import Chunk

_MAX_WAIT_S = 10.0
_DEAD_CLIENT_MS = 20_000
_TCP_USER_TIMEOUT = 18  # linux/tcp.h; the socket module lacks it in some builds


class Share(Protocol):
    """What a server shows of its job."""

    identity: str
    tree: Tree

    def state(self) -> dict[str, object]: ...

    def heard(self, host: str, phase: str) -> None: ...

    def damaged(self, chunk: Chunk) -> None: ...


class Server:
    """Listens until close(). Raises WeightsError when the address cannot be bound."""

    def __init__(self, peer: wire.Peer, share: Share, token: str, allowed: list[str]) -> None:
        self._share = share
        self._token = f"Bearer {token}".encode()
        self._allowed = {wire.plain_address(address) for address in allowed}
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.sent_bytes = 0
        family = socket.AF_INET6 if ":" in peer.address else socket.AF_INET
        try:
            self._listener = socket.create_server(
                (peer.address, peer.port), family=family, backlog=128
            )
        except OSError as exc:
            raise WeightsError(f"cannot listen on {wire.host_port(peer)}: {exc.strerror}") from exc
        threading.Thread(target=self._accept, daemon=True, name="accept").start()

    def close(self) -> None:
        """Stop listening and drop every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return  # closed
            if wire.plain_address(address[0]) not in self._allowed:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, _DEAD_CLIENT_MS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            spare = b""
            while (head := wire.read_head(connection, spare)) is not None:
                spare = head.rest
                if not self._answer(connection, head):
                    break
        except (OSError, wire.WireError, ValueError):
            pass  # the client went away or talks nonsense; it will come again or not
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, head: wire.Head) -> bool:
        """Answer one request. False: close the connection."""
        if not hmac.compare_digest(head.headers.get("authorization", "").encode(), self._token):
            connection.sendall(wire.reply_json(wire.UNAUTHORIZED, {"error": "wrong token"}))
            return False
        method, _, target = head.start.partition(" ")
        path, _, asked = target.partition(" ")[0].partition("?")
        query = {name: value for name, _, value in (x.partition("=") for x in asked.split("&"))}
        parts = path.strip("/").split("/")
        if head.length or parts[:2] != ["v1", self._share.identity]:
            connection.sendall(
                wire.reply_json(wire.NOT_FOUND, {"error": "another model is shared here"})
            )
            return not head.length
        route: dict[tuple[str, str, int], Callable[[], None]] = {
            ("GET", "manifest", 3): lambda: self._manifest(connection),
            ("GET", "chunk", 4): lambda: self._chunk(connection, int(parts[3]), query),
            ("GET", "state", 3): lambda: self._state(connection),
            ("POST", "peer", 3): lambda: self._peer(connection, query),
        }
        found = route.get((method, parts[2] if len(parts) > 2 else "", len(parts)))
        if found is None:
            connection.sendall(wire.reply_json(wire.NOT_FOUND, {"error": "no such thing"}))
        else:
            found()
        return True

    def _manifest(self, connection: socket.socket) -> None:
        data = self._share.tree.manifest.encoded
        connection.sendall(wire.reply_head(wire.OK, len(data)) + data)

    def _state(self, connection: socket.socket) -> None:
        connection.sendall(wire.reply_json(wire.OK, self._share.state()))

    def _peer(self, connection: socket.socket, query: dict[str, str]) -> None:
        self._share.heard(query.get("host", ""), query.get("phase", ""))
        self._state(connection)

    def _chunk(self, connection: socket.socket, index: int, query: dict[str, str]) -> None:
        tree = self._share.tree
        if not 0 <= index < len(tree.chunks):
            connection.sendall(wire.reply_json(wire.NOT_FOUND, {"error": "no such chunk"}))
            return
        wait_s = min(float(query.get("wait", "0")), _MAX_WAIT_S)
        if not tree.wait_for(index, wait_s):
            connection.sendall(wire.reply_json(wire.WAITING, self._share.state()))
            return
        chunk = tree.chunks[index]
        if query.get("check") and not tree.is_right(chunk):
            # The client got wrong bytes; they are wrong here on the disk, not on the way.
            self._share.damaged(chunk)
            connection.sendall(
                wire.reply_json(wire.DAMAGED, {"file": tree.file_of(chunk), "chunk": index})
            )
            return
        connection.sendall(wire.reply_head(wire.OK, chunk.length), socket.MSG_MORE)
        offset, left = chunk.offset, chunk.length
        handle = tree.fd(chunk.file_index)
        while left:
            count = os.sendfile(connection.fileno(), handle, offset, left)
            if count == 0:  # the file was truncated under us: the client sees a short chunk
                raise wire.WireError(f"{tree.file_of(chunk)} ends early")
            offset += count
            left -= count
        with self._lock:
            self.sent_bytes += chunk.length
