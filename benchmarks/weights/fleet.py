"""Agents on the hosts of a Net: real processes, a weights root each."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.weights.net import Net
from vllm_cluster.weights.build import agent_bytes
from vllm_cluster.weights.fanout import Host, Model, make_jobs

PORT = 7501
TOKEN = "lab-token-0123456789"  # noqa: S105  (of a namespace that lives a minute)
MODEL, REVISION = "lab/model", "r1"


def make_model(directory: Path, shards: int, shard_bytes: int, seed: int = 1) -> int:
    """Random shards and two small files, the same for a seed. Returns the bytes in all."""
    directory.mkdir(parents=True)
    source = random.Random(seed)  # noqa: S311
    for number in range(shards):
        path = directory / f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        path.write_bytes(source.randbytes(shard_bytes))
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (directory / "tokenizer.json").write_text("{}" * 1000)
    return sum(path.stat().st_size for path in directory.iterdir())


class Fleet:
    """Host 0 holds the model after obtain(); the others pull it."""

    def __init__(self, net: Net, base: Path, **options: Any) -> None:
        self.net = net
        self.base = base
        self.options = {"reserve_bytes": 0, **options}
        self.agent = base / "agent.pyz"
        self.agent.write_bytes(agent_bytes())
        self.port = PORT
        self.prefix: list[str] = []  # put before the agent's command
        self.link_mbit: float | None = None
        self.identities: dict[str, str] = {}
        self._running: list[subprocess.Popen[str]] = []

    def root(self, number: int) -> Path:
        return self.base / f"host{number}"

    def name(self, number: int) -> str:
        return f"node-{number}"

    def placed(self, number: int, revision: str = REVISION) -> Path:
        return self.root(number) / "lab--model" / revision

    def command(self, number: int, *arguments: str) -> list[str]:
        agent = [sys.executable, str(self.agent), "--root", str(self.root(number)), "--json"]
        return [*self.net.enter(number), *self.prefix, *agent, *arguments]

    def call(self, number: int, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of the agent to its end."""
        return subprocess.run(
            self.command(number, *arguments), capture_output=True, text=True, check=False, **more
        )

    def obtain(self, source: Path, revision: str = REVISION, number: int = 0) -> str:
        """Place `source` on a host; returns the identity."""
        wish = {
            "model": MODEL,
            "revision": revision,
            "sources": [{"kind": "directory", "path": str(source), "mode": "copy"}],
            "reserve_bytes": 0,
            "me": self.name(number),
        }
        done = self.call(number, "obtain", "--wish", "-", input=json.dumps(wish))
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.identities[revision] = str(json.loads(done.stdout)["identity"])
        return self.identities[revision]

    def jobs(
        self, receivers: Iterable[int], *, revision: str = REVISION, holders: Iterable[int] = (0,)
    ) -> dict[str, str]:
        def host(number: int) -> Host:
            return Host(self.name(number), self.net.address(number))

        return make_jobs(
            Model(MODEL, revision, self.identities[revision]),
            [host(number) for number in holders],
            [host(number) for number in receivers],
            token=TOKEN,
            port=self.port,
            link_mbit=self.link_mbit,
            options=self.options,
        )

    def start(self, number: int, how: str, job: str, **more: Any) -> subprocess.Popen[str]:
        """Begin a part in the background; what it says goes to a file beside the root."""
        path = self.base / f"{number}-{how}-{time.monotonic_ns()}.job"
        path.touch(0o600)
        path.write_text(job)
        with (self.base / f"host{number}.log").open("a") as log:
            process = subprocess.Popen(
                self.command(number, how, "--job", str(path)),
                stdout=log, stderr=log, text=True, **more,
            )  # fmt: skip
        self._running.append(process)
        return process

    def start_all(self, receivers: list[int], **which: Any) -> dict[int, subprocess.Popen[str]]:
        jobs = self.jobs(receivers, **which)
        holders = which.get("holders", (0,))
        started = {n: self.start(n, "serve", jobs[self.name(n)]) for n in holders}
        return started | {n: self.start(n, "pull", jobs[self.name(n)]) for n in receivers}

    def key(self, revision: str = REVISION) -> str:
        return f"lab--model@{self.identities[revision][:16]}"

    def state(self, number: int, revision: str = REVISION) -> dict[str, Any]:
        """What the agent last wrote about its job; empty before that."""
        path = self.root(number) / ".jobs" / f"{self.key(revision)}.json"
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        return value

    def log(self, number: int) -> str:
        path = self.base / f"host{number}.log"
        return path.read_text() if path.exists() else ""

    def stop_all(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_until(true: Callable[[], object], timeout_s: float = 60.0, what: str = "") -> None:
    """Look every 20 ms until it is so. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or true}")
        time.sleep(0.02)
