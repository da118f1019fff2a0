"""A cluster of stand-ins whose model is large enough to be caught on its way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.lab.harness import BIN, ROOT, Cluster

WEIGHTS = "/var/lib/vllm-cluster/models"
PLACE = "deploys/weights.py"
SHARDS, SHARD_BYTES = 12, 4 << 20
TOTAL_BYTES = SHARDS * SHARD_BYTES
HOSTS = ("node-a", "node-b")


def write_model(folder: Path, seed: int) -> Path:
    """Random shards, the same for a seed."""
    folder.mkdir(parents=True)
    source = random.Random(seed)  # noqa: S311
    for number in range(SHARDS):
        (folder / f"model-{number:02}.safetensors").write_bytes(source.randbytes(SHARD_BYTES))
    (folder / "config.json").write_text('{"architectures": ["StandIn"]}\n')
    return folder


def edit(cluster: Cluster, change: Callable[[dict[str, Any]], None], name: str = "") -> Cluster:
    """The cluster with a changed description, in its own file where `name` is given."""
    text = yaml.safe_load(cluster.description.read_text())
    change(text)
    inventory = cluster.inventory
    if name:
        inventory = cluster.inventory.with_name(f"{name}.py")
        inventory.write_text(cluster.inventory.read_text().replace("lab.yaml", f"{name}.yaml"))
    inventory.with_suffix(".yaml").write_text(yaml.safe_dump(text, sort_keys=False))
    return Cluster(cluster.lab, inventory)


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """`vllm-cluster weights WORD FILE …`, its exit status not judged."""
    verb, *more = words
    return subprocess.run(
        [BIN / "vllm-cluster", "weights", verb, str(cluster.description), *more],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def start(cluster: Cluster, log: Path, deploy: str = PLACE) -> subprocess.Popen[bytes]:
    """pyinfra in the background, in a process group of its own."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, BIN / "pyinfra", "-y", str(cluster.inventory), deploy],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip


def start_placing(cluster: Cluster, log: Path) -> subprocess.Popen[bytes]:
    """`vllm-cluster weights place` in the background."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [BIN / "vllm-cluster", "weights", "place", str(cluster.description)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to pyinfra alone: what it started meanwhile is on its own, as after a crash."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def wipe(cluster: Cluster) -> None:
    """No host has any of it, no job works on it."""
    for host in HOSTS:
        cluster.on(host, f"rm -rf {WEIGHTS}/* {WEIGHTS}/.[a-z]*")


def revision(cluster: Cluster, host: str = "node-a", model: str = "tiny") -> str:
    """The newest revision of the model there."""
    return cluster.on(host, f"ls -t {WEIGHTS}/{model}").split()[0]


# Asked on the host: over SSH from here, a busy machine would miss the last tenth.
_REACHED = """
import json, pathlib, sys, time
bytes_, limit_s, began_s = float(sys.argv[1]), 120, time.monotonic()
while time.monotonic() < began_s + limit_s:
    for file in pathlib.Path(sys.argv[2], ".jobs").glob("*.json"):
        try:
            state = json.loads(file.read_text())
        except ValueError:
            continue
        if state["phase"] == "fetching" and state["have_bytes"] >= bytes_:
            sys.exit()
    time.sleep(0.05)
sys.exit("not within 120 s")
"""


def reach(cluster: Cluster, host: str, share: float) -> None:
    """Wait until the host has fetched that share and still fetches."""
    asked = f"python3 - {share * TOTAL_BYTES} {WEIGHTS}"
    done = cluster.lab.host(host).ssh(asked, stdin=_REACHED, timeout_s=180)
    assert done.returncode == 0, f"{share:.0%} on {host}: {done.stderr}"


def job_of(cluster: Cluster, host: str, path: str) -> dict[str, Any]:
    """What the last fan-out of the copy at `path` said of itself there."""
    key = cluster.on(host, f"basename $(readlink {path})").strip()
    state = json.loads(cluster.on(host, f"cat {WEIGHTS}/.jobs/{key}.json"))
    assert isinstance(state, dict)
    return state


def sums(folder: Path) -> dict[str, str]:
    """sha256sum of a directory of this machine."""
    names = sorted(path.name for path in folder.iterdir())
    done = subprocess.run(
        ["sha256sum", *names], cwd=folder, capture_output=True, text=True, check=True
    )
    return _pairs(done.stdout)


def sums_on(cluster: Cluster, host: str, path: str) -> dict[str, str]:
    """sha256sum of a directory of a host, link followed."""
    return _pairs(cluster.on(host, f"cd {path}/ && sha256sum *"))


def _pairs(text: str) -> dict[str, str]:
    rows = [line.split(maxsplit=1) for line in text.splitlines()]
    return {name: digest for digest, name in rows}


def listening(cluster: Cluster, host: str) -> list[str]:
    """Ports of the fan-out that listen."""
    lines = cluster.on(host, "ss -Htln").splitlines()
    ports = [line.split()[3].rsplit(":", 1)[1] for line in lines]
    return [port for port in ports if 6390 <= int(port) <= 6399]
