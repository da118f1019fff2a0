"""A stop waits for what vLLM has begun, past the closed door, and no longer than is declared."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


class Server(HTTPServer):
    """vLLM's counters: `counts` one after the other, the last one for good."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Counters)
        self.counts: list[int] = [0]
        self.askers: list[str] = []


class Counters(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        counts = self.server.counts
        self.server.askers.append(self.client_address[0])
        running = counts.pop(0) if len(counts) > 1 else counts[0]
        body = (
            f'vllm:num_requests_running{{engine="0"}} {running}.0\n'
            'vllm:num_requests_waiting{engine="0"} 0.0\n'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def vllm() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def asked(probe: ModuleType, vllm: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe asks this vLLM."""
    monkeypatch.setattr(probe, "API", f"http://127.0.0.1:{vllm.server_port}")


def test_what_is_under_way_is_waited_for(probe: ModuleType, vllm: Server) -> None:
    vllm.counts = [2, 0, 1, 0, 0]
    probe.drain(Namespace(wait=60))
    assert len(vllm.askers) == 5, "a pause between two requests is no end"


def test_the_door_knows_the_address_that_asks(probe: ModuleType, vllm: Server) -> None:
    door = (ROOT / "templates/usr/local/lib/vllm-cluster/door").read_text()
    probe.drain(Namespace(wait=60))
    assert {f"probe={asker}" for asker in vllm.askers} <= set(door.splitlines())


def test_it_is_waited_for_no_longer_than_declared(
    probe: ModuleType, vllm: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    vllm.counts = [3]
    probe.drain(Namespace(wait=0.6))
    assert capsys.readouterr().out == "3 requests have not finished within 1 s\n"


def test_a_server_that_does_not_answer_is_waited_for_no_longer(
    probe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "API", "http://127.0.0.1:1")
    with pytest.raises(SystemExit, match="does not say"):
        probe.drain(Namespace(wait=60))
