"""One host's seed over HTTP, at one address, until the machine has what it needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import AddressValueError, IPv4Address
from secrets import token_hex

from vllm_cluster.seed.make import Seed

# What is asked for after the files that are needed (vendor-data, network-config) comes at once.
QUIET_S = 5.0
Say = Callable[[str], None]


def listen_at(text: str) -> tuple[str, int]:
    """`ADDRESS:PORT`, an IPv4 address of this machine. Raises ValueError with what is accepted."""
    address, _, port = text.rpartition(":")
    try:
        parsed = IPv4Address(address)
    except AddressValueError:
        parsed = IPv4Address(0)
    if parsed.is_unspecified or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(
            f"found {text!r}; accepted: an IPv4 address of this machine and a port, "
            "such as 192.168.1.2:8080"
        )
    return str(parsed), int(port)


class Server:
    """Serves one seed. `url` is what the machine is given; it is over when `wait` returns.

    A seed that carries a host key lies behind a path that nobody guesses.
    """

    def __init__(self, seed: Seed, address: str, port: int, say: Say) -> None:
        """Listen at once. Raises OSError where the address is not this machine's, or in use."""
        self._seed, self._say = seed, say
        self._fetched: dict[str, float] = {}
        self._done = threading.Condition()
        self._prefix = f"/{token_hex(8)}/" if seed.secret else "/"
        self._http = ThreadingHTTPServer((address, port), self._handler())
        self._http.daemon_threads = True
        host, bound = self._http.server_address[:2]
        self.url = f"http://{host!s}:{bound}{self._prefix}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all needed files were fetched and nothing more is asked for.

        False when `timeout_s` passed first.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._done:
            while not self.is_done:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._done.wait(min(1.0, left) if left is not None else 1.0)
        return True

    @property
    def is_done(self) -> bool:
        """Whether the machine has it all."""
        if any(name not in self._fetched for name in self._seed.needed):
            return False
        every = all(name in self._fetched for name in self._seed.files)
        return every or time.monotonic() - max(self._fetched.values()) > QUIET_S

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            """GET and HEAD of the seed's own files, nothing else."""

            def do_GET(self) -> None:
                """Answer with a file."""
                server._answer(self, send=True)

            def do_HEAD(self) -> None:
                """Answer with a file's size."""
                server._answer(self, send=False)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: `_answer` says what was fetched."""

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler, *, send: bool) -> None:
        path = request.path.partition("?")[0]
        name = path.removeprefix(self._prefix) if path.startswith(self._prefix) else ""
        text = self._seed.files.get(name)
        client = request.client_address[0]
        if text is None:
            self._say(f"{client} asked for {path[:80]!r}: not here")
            request.send_error(404)
            return
        data = text.encode()
        request.send_response(200)
        request.send_header("Content-Type", "text/plain; charset=utf-8")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if not send:
            return
        request.wfile.write(data)
        self._say(f"{client} fetched {name}, {len(data)} bytes")
        with self._done:
            self._fetched[name] = time.monotonic()
            self._done.notify_all()
