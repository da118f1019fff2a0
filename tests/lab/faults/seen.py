"""What the client saw: its events, read as they come."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.harness import ROOT, Cluster


@dataclass
class Client:
    """The streaming client of a cluster, running until `stop`."""

    process: subprocess.Popen[str]
    log: Path

    @classmethod
    def start(cls, cluster: Cluster, log: Path) -> Client:
        """Start it at the lab's outside address."""
        head = cluster.lab.host("node-a").address
        program = [sys.executable, "-m", "tests.lab.faults.client", head, "8000"]
        process = subprocess.Popen(
            cluster.lab.outside_argv(program),
            stdin=subprocess.PIPE, stdout=log.open("w"), text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(cluster.secrets["api_key"] + "\n")
        process.stdin.flush()
        return cls(process, log)

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def events(self, since_s: float = 0) -> list[dict[str, Any]]:
        """Its events from `since_s` of the machine's clock on."""
        lines = self.log.read_text().split("\n")[:-1]
        return [event for line in lines if (event := json.loads(line))["time_s"] >= since_s]

    def first_whole(self, since_s: float) -> float | None:
        """When the first completion that began after `since_s` had come whole."""
        whole = (e for e in self.events(since_s) if e["event"] == "whole")
        return next((e["time_s"] for e in whole if e["began_s"] >= since_s), None)


def told(events: list[dict[str, Any]]) -> str:
    """What a client saw, in words: streams that broke, requests that were refused, the silence."""
    parts = []
    for event in events:
        if event["event"] == "broken":
            parts.append(f"stream broken after {event['tokens']} tokens ({event['words']})")
    refused = [e["words"] for e in events if e["event"] == "refused"]
    for words in dict.fromkeys(refused):
        parts.append(f"{refused.count(words)} x {words}")
    if not parts:
        times = [e["time_s"] for e in events]
        gap = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
        return f"no request lost; longest silence {gap:.0f} s"
    return "; ".join(parts)
