"""The watchdog's judgement, against a server that works, hangs, is busy, or turns it away."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.recovery.conftest import program
from vllm_cluster.plan import make_plan, paths
from vllm_cluster.spec import load
from vllm_cluster.steps import configs
from vllm_cluster.steps.render import templates

ROOT = Path(__file__).parents[3]
WATCH = templates() / paths.SCRIPTS.lstrip("/") / "watch.py"


class Server:
    """vLLM and Ray as far as the watchdog sees them. `status` by path; None never answers."""

    def __init__(self) -> None:
        self.status: dict[str, int | None] = {"/metrics": 200, "/v1/completions": 200}
        self.tokens, self.asked = 0, []  # type: int, list[str]
        self.actors = {"a": "ALIVE", "b": "ALIVE", "of an engine before": "DEAD"}
        self.jobs = {"a job's": "ALIVE"}
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status = outer.status.get(self.path.partition("?")[0], 404)
                if status is None:
                    outer.closing.wait(30)
                    return
                self.send_response(status)
                self.end_headers()
                self.wfile.write(outer.body(self.path).encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def body(self, path: str) -> str:
        if path == "/metrics":
            return (
                f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}\n'
                'vllm:num_requests_waiting{engine="0"} 3.0\n'
            )
        if path.startswith("/api/v0/actors"):
            rows = [
                {"actor_id": name, "class_name": kind, "node_id": "n", "state": state}
                for kind, actors in (("RayWorkerProc", self.actors), ("JobSupervisor", self.jobs))
                for name, state in actors.items()
            ]
            return json.dumps({"data": {"result": {"result": rows}}})
        return json.dumps({"usage": {"completion_tokens": 1}})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.closing.set()
    made.http.shutdown()


@pytest.fixture
def watch(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    plan = make_plan(load(ROOT / "inventories" / "lab.yaml").description)
    address = f"http://127.0.0.1:{server.http.server_port}"
    text = configs.probe_file(plan, plan.hosts["node-a"])
    for planned in ("http://127.0.0.1:8000", "http://127.0.0.1:8265"):
        text = text.replace(planned, address)
    (tmp_path / "probe.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "probe", raising=False)
    yield program(WATCH, "watch_under_test")
    monkeypatch.delitem(sys.modules, "probe", raising=False)


@pytest.fixture
def gcs() -> Iterator[socket.socket]:
    """The head's GCS, as far as a worker's watchdog dials it."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def healthz(server: Server) -> str:
    """Where Ray's agent says of its raylet whether the head holds it for alive."""
    return f"http://127.0.0.1:{server.http.server_port}/healthz"


def settle(engine: Any) -> None:
    """Wait until the request that is out has ended."""
    if engine.request is not None:
        engine.request.join(5)


def until(engine: Any, now: float, end: float, step: Callable[[], None] = lambda: None) -> Any:
    """Look every five seconds from `now` to `end`; the last verdict."""
    verdict = ("", "")
    while now <= end and verdict[0] != "dead":
        step()
        verdict = engine.look(now)
        now += 5
    return verdict


def test_an_idle_engine_that_answers_is_well(watch: ModuleType, server: Server) -> None:
    engine = watch.Engine(60, 0)
    for now in range(0, 600, 5):
        word, _ = engine.look(now)
        settle(engine)
        assert word == "well"
    assert 5 < server.asked.count("/v1/completions") < 40


def test_an_engine_that_hangs_is_dead_though_metrics_answer(
    watch: ModuleType, server: Server
) -> None:
    server.status["/v1/completions"] = None
    engine = watch.Engine(60, 0)
    assert until(engine, 0, 55)[0] == "waits"
    word, words = until(engine, 60, 120)
    assert word == "dead"
    assert "no token for" in words
    assert "3 waiting" in words


def test_a_busy_engine_is_alive_while_its_counters_move(watch: ModuleType, server: Server) -> None:
    server.status["/v1/completions"] = None

    def produce() -> None:
        server.tokens += 1

    engine = watch.Engine(60, 0)
    assert until(engine, 0, 1000, produce) == ("well", "requests: 3 waiting")
    assert until(engine, 1005, 2000)[0] == "dead", "and dead once they stand"


def test_an_engine_that_lost_a_rank_is_dead_unless_it_ends(
    watch: ModuleType, server: Server
) -> None:
    server.status["/api/v0/actors"] = 200
    engine = watch.Engine(600, 0)
    assert until(engine, 0, 20)[0] == "well"
    server.actors["b"] = "DEAD"
    assert engine.look(25)[0] == "well", "vLLM may end by itself"
    assert engine.look(30) == ("dead", "a rank has died in Ray, and vLLM has not ended")


def test_a_job_that_somebody_ran_in_the_session_is_no_rank(
    watch: ModuleType, server: Server
) -> None:
    server.status["/api/v0/actors"] = 200
    engine = watch.Engine(600, 0)
    assert until(engine, 0, 20, lambda: settle(engine))[0] == "well"
    server.jobs["a job's"] = "DEAD"
    assert until(engine, 25, 100, lambda: settle(engine))[0] == "well"


def test_without_an_answer_of_ray_no_rank_is_lost(watch: ModuleType, server: Server) -> None:
    server.status["/api/v0/actors"] = 200
    engine = watch.Engine(600, 0)
    assert until(engine, 0, 20)[0] == "well"
    server.status["/api/v0/actors"] = 500
    assert until(engine, 25, 100, lambda: settle(engine))[0] == "well"


def test_a_server_without_a_word_is_dead(watch: ModuleType, server: Server) -> None:
    server.http.shutdown()
    server.http.server_close()
    engine = watch.Engine(60, 0)
    word, words = until(engine, 0, 200, lambda: settle(engine))
    assert word == "dead"
    assert "refused" in words


@pytest.mark.parametrize("status", [401, 400])
def test_a_request_that_is_turned_away_judges_nothing(
    watch: ModuleType, server: Server, status: int
) -> None:
    server.status["/v1/completions"] = status
    engine = watch.Engine(60, 0)
    for now in range(0, 600, 5):
        assert engine.look(now)[0] != "dead"
        settle(engine)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_errors_of_the_server_are_no_sign_of_life(
    watch: ModuleType, server: Server, status: int
) -> None:
    server.status["/v1/completions"] = status
    engine = watch.Engine(60, 0)
    verdict = ("", "")
    for now in range(0, 200, 5):
        verdict = engine.look(now)
        settle(engine)
        if verdict[0] == "dead":
            break
    assert verdict[0] == "dead"
    assert f"HTTP {status}" in verdict[1]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/pooling"])
def test_a_pooling_model_is_asked_for_what_it_does(
    watch: ModuleType, server: Server, path: str
) -> None:
    server.status = {"/metrics": 200, path: 200}
    watch.probe.answer(5)
    watch.probe.answer(5)
    assert server.asked[-1] == path
    assert server.asked.count("/v1/completions") == 1, "found once, kept"


def test_a_host_that_its_head_does_not_know_is_dead_at_the_second_look(
    watch: ModuleType, server: Server, gcs: socket.socket
) -> None:
    url = healthz(server)
    node = watch.Node(url, head=False, gcs=gcs.getsockname(), now=0)
    server.status["/healthz"] = 200
    assert node.look(2)[0] == "well"
    server.status["/healthz"] = 503
    assert node.look(4)[0] == "waits"
    assert node.look(6)[0] == "dead"


def test_a_worker_whose_heads_gcs_has_ended_is_dead_at_the_second_look(
    watch: ModuleType, server: Server, gcs: socket.socket
) -> None:
    url, address = healthz(server), gcs.getsockname()
    server.status["/healthz"] = 200
    node = watch.Node(url, head=False, gcs=address, now=0)
    gcs.close()
    assert node.look(2) == ("waits", f"the Ray head's GCS at 127.0.0.1:{address[1]} has ended")
    with socket.create_server(address):
        assert node.look(4)[0] == "well", "one refusal is none"
    assert node.look(6)[0] == "waits"
    assert node.look(8)[0] == "gone"


def test_a_head_that_is_not_reached_is_not_taken_for_one_that_ended(
    watch: ModuleType, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch.Node, "CONNECT_S", 0.2)
    server.status["/healthz"] = 200
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        # One fills what a backlog of 0 takes: the next is dropped, as by a cable.
        with socket.create_connection(address), pytest.raises(TimeoutError):
            socket.create_connection(address, 0.2)
        url = healthz(server)
        node = watch.Node(url, head=False, gcs=address, now=0)
        assert [node.look(now)[0] for now in (2, 4, 6)] == ["well"] * 3


def test_a_worker_is_not_blamed_for_a_head_of_another_session(
    watch: ModuleType, server: Server, gcs: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "body", lambda _: "RPC error: WrongClusterID: Perhaps the client")
    server.status["/healthz"] = 503
    url = healthz(server)
    worker = watch.Node(url, head=False, gcs=gcs.getsockname(), now=0)
    assert [worker.look(now)[0] for now in (2, 4)] == ["waits", "gone"]
    head = watch.Node(url, head=True, gcs=gcs.getsockname(), now=0)
    assert [head.look(now)[0] for now in (2, 4)] == ["waits", "dead"]


def test_the_watchdog_understands_the_probe_of_a_kept_generation(
    server: Server, tmp_path: Path
) -> None:
    """watch.py comes with every deploy, probe.py with its generation: a way back brings an old."""
    plan = make_plan(load(ROOT / "inventories" / "lab.yaml").description)
    now = configs.probe_file(plan, plan.hosts["node-b"])
    before = "".join(line for line in now.splitlines(True) if not line.startswith("GCS = "))
    assert before != now
    agent = f'RAYLET = "{healthz(server)}"'
    (tmp_path / "probe.py").write_text(re.sub("(?m)^RAYLET = .*$", agent, before))
    server.status["/healthz"] = 200
    shutil.copy(WATCH, tmp_path)
    argv = [sys.executable, str(tmp_path / "watch.py"), "ray-worker"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        first = watcher.stdout.readline()
        watcher.kill()
    assert first.strip() == "well"


# What every probe.py that a host may have kept can do: watch.py must live with less than today's.
EVERY_PROBE = {
    "API", "HANG_S", "LOAD", "RAY", "RAYLET", "answer", "count", "ranks", "text",
}  # fmt: skip


def test_the_watchdog_asks_of_the_probe_what_every_generation_has() -> None:
    text = WATCH.read_text()
    assert set(re.findall(r"\bprobe\.(\w+)", text)) - {"py"} == EVERY_PROBE


@pytest.mark.parametrize("status", [401, 403])
def test_ray_is_not_ended_over_a_token_that_is_being_replaced(
    watch: ModuleType, server: Server, gcs: socket.socket, status: int
) -> None:
    url = healthz(server)
    node = watch.Node(url, head=False, gcs=gcs.getsockname(), now=0)
    server.status["/healthz"] = status
    looks = [node.look(now) for now in range(2, 200, 20)]
    assert {word for word, _ in looks} == {"waits"}
    assert "turns the watchdog away" in looks[-1][1]


def test_an_agent_that_has_answered_may_be_silent_for_a_minute(
    watch: ModuleType, server: Server, gcs: socket.socket
) -> None:
    url = healthz(server)
    node = watch.Node(url, head=False, gcs=gcs.getsockname(), now=0)
    server.status["/healthz"] = 200
    assert node.look(100)[0] == "well"
    server.http.shutdown()
    server.http.server_close()
    assert node.look(159)[0] == "waits"
    assert node.look(161)[0] == "dead"


def test_an_agent_that_is_still_starting_has_ten_minutes(
    watch: ModuleType, server: Server, gcs: socket.socket
) -> None:
    server.http.shutdown()
    server.http.server_close()
    url = healthz(server)
    node = watch.Node(url, head=False, gcs=gcs.getsockname(), now=0)
    began = time.monotonic()
    assert node.look(599)[0] == "waits"
    assert node.look(601)[0] == "dead"
    assert time.monotonic() - began < 15
