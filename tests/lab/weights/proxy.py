"""A network that damages what it carries: a proxy on the receiver's own address."""

from __future__ import annotations

import json
import os
import socket
import threading
from types import TracebackType

from benchmarks.weights.net import Net

_PORT = 7999
_MIN_BYTES = 100_000


class FlippingProxy:
    """Listens in host `number`, passes on to port 7501 of `target`, flips one bit in each of the
    first `flips` large pieces that come back."""

    def __init__(self, net: Net, number: int, target: str, flips: int) -> None:
        self._net = net
        self._number = number
        self._target = target
        self._left = flips
        self.flipped = 0
        self._sockets: list[socket.socket] = []

    def redirect(self, jobs: dict[str, str], receiver: str) -> dict[str, str]:
        """Jobs in which the receiver meets the first host behind the proxy."""
        value = json.loads(jobs[receiver])
        value["chain"][0]["address"] = self._net.address(self._number)
        value["chain"][0]["port"] = _PORT
        return {**jobs, receiver: json.dumps(value)}

    def __enter__(self) -> FlippingProxy:
        self._listener = self._in_namespace()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _in_namespace(self, target: tuple[str, int] | None = None) -> socket.socket:
        """A socket belongs to the namespace its thread was in when it was made."""
        made: list[socket.socket] = []
        failed: list[OSError] = []

        def make() -> None:
            try:
                connect()
            except OSError as exc:
                failed.append(exc)

        def connect() -> None:
            with open(f"/run/netns/{self._net.namespace(self._number)}") as space:  # noqa: PTH123
                _setns(space.fileno())
            if target is None:
                made.append(socket.create_server((self._net.address(self._number), _PORT)))
            else:
                made.append(socket.create_connection(target, 10))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        self._sockets += made
        if failed:
            raise failed[0]
        return made[0]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            try:
                server = self._in_namespace((self._target, 7501))
            except OSError:  # the first host does not listen yet
                client.close()
                continue
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()
            threading.Thread(target=self._damage, args=(server, client), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    def _damage(self, source: socket.socket, sink: socket.socket) -> None:
        carried = 0
        try:
            while data := source.recv(65536):
                carried += len(data)
                if self._left and carried > _MIN_BYTES and len(data) > 1000:
                    data = data[:500] + bytes([data[500] ^ 1]) + data[501:]
                    self._left -= 1
                    self.flipped += 1
                    carried = -2_000_000  # the next one in another chunk
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()


def _setns(handle: int) -> None:
    """setns(2): os.setns is Python 3.12."""
    import ctypes  # noqa: PLC0415

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, 0x40000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
