"""Put a fault into a cluster that serves, and measure how it comes back, alone."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.lab.faults.fault import Fault
from tests.lab.faults.seen import Client, told
from tests.lab.harness import ROOT, Cluster, await_true
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

RESULTS = ROOT / ".cache" / "faults"
RECOVERY_LIMIT_S = 900.0
# A completion must come whole this long before the fault: it hits a cluster that serves.
CALM_S = 180.0
GOES_ON_S = 40.0


def commit() -> str:
    """The commit that is under test, `-dirty` behind it where files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def chosen(faults: Iterable[Fault]) -> list[Fault]:
    """Those that FAULTS=a,b names; all without it."""
    names = [name for name in os.environ.get("FAULTS", "").split(",") if name]
    return [fault for fault in faults if not names or fault.name in names]


def kept(lab: str, name: str) -> Path:
    """The file of a result of this commit."""
    return RESULTS / commit() / lab / f"{name}.json"


def one(cluster: Cluster, lab: str, fault: Fault, log: Path) -> dict[str, Any]:
    """Inject `fault` while a client streams; its result, which is kept too."""
    client = Client.start(cluster, log)
    try:
        calm_s = time.time()
        await_true("a whole stream", lambda: client.first_whole(calm_s) is not None, CALM_S)
        _forget(cluster)
        before, load = _container(cluster), os.getloadavg()[0]
        began_s = time.time()
        fault.inject(cluster)
        ended_s = time.time()
        try:
            recovered_s = _recovered(cluster, client, fault, before, ended_s)
        except AssertionError:
            _keep(lab, _result(fault, began_s, ended_s, client, load))
            raise
        started_s = _started_s(cluster)
        if fault.proof is not None:
            fault.proof(cluster)
    finally:
        client.stop()
    after = started_s - ended_s if fault.restarts else 0.0
    result = _result(fault, began_s, ended_s, client, load) | {
        "recovered_s": round(recovered_s - ended_s, 1),
        "vllm_start_s": round(recovered_s - started_s, 1) if fault.restarts else None,
        "overhead_s": round(max(after, 0.0), 1) if fault.restarts else None,
    }
    _keep(lab, result)
    return result


def came_back(lab: str, name: str) -> bool:
    """Whether this commit has a result of a fault after which it served again."""
    file = kept(lab, name)
    return file.exists() and json.loads(file.read_text())["recovered_s"] is not None


def _result(
    fault: Fault, began_s: float, ended_s: float, client: Client, load: float
) -> dict[str, Any]:
    """As of one after which nothing serves: a person is needed."""
    return {
        "name": fault.name, "words": fault.words, "forced": fault.forced,
        "restarted": fault.restarts, "lasted_s": round(ended_s - began_s, 1),
        "recovered_s": None, "vllm_start_s": None, "overhead_s": None,
        "limit_s": fault.limit_s, "client": told(client.events(began_s)),
        "load": round(max(load, os.getloadavg()[0]), 1),
    }  # fmt: skip


def _keep(lab: str, result: dict[str, Any]) -> None:
    file = kept(lab, result["name"])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")


def allowed_s(fault: Fault, result: dict[str, Any]) -> float:
    """What ours may take: the fault's limit, stretched on a machine with more work than cores."""
    return fault.limit_s * max(1.0, float(result["load"]) / (os.cpu_count() or 1))


def _recovered(
    cluster: Cluster, client: Client, fault: Fault, before: str, ended_s: float
) -> float:
    """When the first good completion after the fault had come; vLLM is another one by then."""
    if not fault.restarts:
        await_true("a stream", lambda: client.first_whole(ended_s) is not None, RECOVERY_LIMIT_S)
        time.sleep(GOES_ON_S)
        assert _container(cluster) == before, "vLLM was restarted, and need not have been"
        whole_s = client.first_whole(ended_s)
        assert whole_s is not None
        return whole_s
    await_true(
        f"another vLLM after {fault.name}",
        lambda: _container(cluster) not in {"", before} and _active(cluster),
        RECOVERY_LIMIT_S,
    )
    started_s = _started_s(cluster)
    await_true(
        "a whole stream",
        lambda: client.first_whole(max(started_s, ended_s)) is not None,
        RECOVERY_LIMIT_S,
    )
    recovered_s = client.first_whole(max(started_s, ended_s))
    assert recovered_s is not None
    assert _container(cluster) not in {"", before}
    return recovered_s


def _active(cluster: Cluster) -> bool:
    return cluster.on("node-a", "systemctl is-active vllm", check=False).strip() == "active"


def _container(cluster: Cluster) -> str:
    return cluster.on("node-a", "docker inspect --format '{{.Id}}' vllm", check=False).strip()


def _started_s(cluster: Cluster) -> float:
    """When vLLM's container was started. All hosts have this machine's clock."""
    ask = "date -d \"$(docker inspect --format '{{.State.StartedAt}}' vllm)\" +%s.%N"
    return float(cluster.on("node-a", ask))


def _forget(cluster: Cluster) -> None:
    """As after a quiet quarter of an hour: each fault is the first of its day."""
    for host in make_plan(load(cluster.description).description).hosts.values():
        for unit in host.units:
            cluster.on(host.name, f"/usr/local/lib/vllm-cluster/attempt held {unit}")
