"""The head moves under real vLLM over Ray, and back: the same tokens, from the other host."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.harness import ROOT, Cluster, describe
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600)]
NAME = lab_name("t-move-real")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts, node-a their head."""
    lab = Lab.up(2, name=NAME)
    try:
        made = describe(lab, tmp_path_factory.mktemp("move"))
        made.apply()
        yield made
    finally:
        lab.down()


def tokens(cluster: Cluster, host: str, reference: Any) -> list[int] | None:
    """The greedy answer of the API on `host`, asked from outside; None where nothing answers."""
    body = {
        "model": "tiny", "prompt": reference["prompt"], "max_tokens": len(reference["token_ids"]),
        "temperature": 0, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    done = cluster.lab.outside(
        "curl", "--silent", "--fail-with-body", "--max-time", "60",
        "--header", f"Authorization: Bearer {cluster.secrets['api_key']}",
        "--header", "Content-Type: application/json", "--data", json.dumps(body),
        f"http://{cluster.lab.host(host).address}:8000/v1/completions",
    )  # fmt: skip
    found = json.loads(done.stdout)["choices"][0]["token_ids"] if done.returncode == 0 else None
    assert found is None or isinstance(found, list)
    return found


@pytest.mark.parametrize(("old", "new"), [("node-a", "node-b"), ("node-b", "node-a")])
def test_one_change_and_one_run(cluster: Cluster, old: str, new: str) -> None:
    reference = json.loads((ROOT / ".cache" / "model" / "reference.json").read_text())
    assert tokens(cluster, old, reference) == reference["token_ids"]
    text = cluster.description.read_text()
    cluster.description.write_text(text.replace(f"head: {old}", f"head: {new}"))
    began = time.monotonic()
    cluster.apply()
    assert tokens(cluster, new, reference) == reference["token_ids"]
    took = f"{old} -> {new}: {time.monotonic() - began:.0f} s to the first completion\n"
    print(took)
    if os.environ.get("MOVE_TIMES"):
        with Path(os.environ["MOVE_TIMES"]).open("a") as file:
            file.write(took)
    assert tokens(cluster, old, reference) is None
    assert cluster.on(old, "docker ps --format '{{.Names}}'").split() == ["ray-worker"]
    left = "ls /etc/systemd/system/ray-head.service /etc/systemd/system/vllm.service"
    assert cluster.on(old, f"{left} 2>/dev/null; true") == ""
    assert cluster.on(old, "ls -A /etc/vllm-cluster/secrets").split() == ["ray-token"]
    assert cluster.planned() == {}
