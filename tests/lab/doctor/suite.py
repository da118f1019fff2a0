"""Runs doctor on a lab's cluster, applies its fixes word for word, keeps what it said."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.lab.doctor.fault import Fault
from tests.lab.harness import BIN, ROOT, Cluster
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

_NOTICE_TIMEOUT_S = 240  # Ray's own time-outs are of a minute
# What doctor said last of a cluster; touching it makes that void.
_LAST: dict[Path, list[dict[str, Any]]] = {}


# Of the stand-in image alone: it opens Ray's port and nothing else. Its absence of Ray and vLLM
# is no fault of the hosts.
_NOT_THERE = {"ray.dashboard", "ray.raylet", "vllm.health"}
_NOT_YET_THERE = "its dashboard does not answer yet"
STANDINS: set[Path] = set()
# Told for a while after something was mended: no fault that is there.
_PAST = {"ray.was-hung", "vllm.was-hung", "ray.flaps", "vllm.flaps"}


def touched(cluster: Cluster) -> None:
    """The cluster was changed: what doctor said last holds no more."""
    _LAST.pop(cluster.inventory, None)


def forget_starts(cluster: Cluster) -> None:
    """As after a quiet quarter of an hour: starts of earlier faults make no pause in this one."""
    for host in make_plan(load(cluster.description).description).hosts.values():
        units = " ".join(host.units)
        tool = "/usr/local/lib/vllm-cluster/attempt"
        cluster.on(host.name, f"for unit in {units}; do {tool} held $unit; done")


@dataclass(frozen=True)
class Said:
    """One run of doctor."""

    code: int
    seconds: float
    findings: list[dict[str, Any]]
    deployed: bool = True

    @property
    def first(self) -> dict[str, Any] | None:
        """The first line that is no warning."""
        return next((f for f in self.findings if f["severity"] != "warning"), None)

    def has(self, identity: str) -> bool:
        """Whether a finding of that id, or of that pattern, is there, first or not."""
        return any(fnmatchcase(finding["id"], identity) for finding in self.findings)

    def names(self) -> str:
        """All of it, for a failed test's words."""
        return json.dumps(
            [{k: f[k] for k in ("id", "host", "found", "evidence", "caused_by")}
             for f in self.findings], indent=1)  # fmt: skip


def doctor(cluster: Cluster) -> Said:
    """Run it as a person does."""
    done = subprocess.run(
        [BIN / "vllm-cluster", "doctor", "--json", str(cluster.description)],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["exit_code"] == done.returncode
    found = [finding for finding in said["findings"] if finding["id"] not in _PAST]
    if cluster.inventory in STANDINS:
        found = [finding for finding in found if finding["id"] not in _NOT_THERE
                 and not finding["found"].endswith(_NOT_YET_THERE)]  # fmt: skip
    _LAST[cluster.inventory] = found
    return Said(done.returncode, said["seconds"], found, said["deployed"])


def await_sound(cluster: Cluster, timeout_s: float) -> float:
    """Seconds until doctor has nothing to say, at once where it said so last."""
    if _LAST.get(cluster.inventory) == []:
        return 0.0
    began = time.monotonic()
    while (said := doctor(cluster)).findings:
        assert time.monotonic() - began < timeout_s, f"not sound: {said.names()}"
    return time.monotonic() - began


def await_said(cluster: Cluster, identity: str) -> Said:
    """Doctor's words once `identity` is among them; any failing line where it is empty."""
    began = time.monotonic()
    while True:
        said = doctor(cluster)
        if said.has(identity) if identity else said.first is not None:
            return said
        waited = time.monotonic() - began
        assert waited < _NOTICE_TIMEOUT_S, f"no {identity or 'finding'}: {said.names()}"


def await_deed(cluster: Cluster, said: Said) -> Said:
    """Doctor's words once its first fix is more than to wait, as it is for what has just begun."""
    began = time.monotonic()
    while said.first is not None and said.first["fix"][0]["command"].startswith("Wait"):
        assert time.monotonic() - began < _NOTICE_TIMEOUT_S, said.names()
        said = doctor(cluster)
    return said


def apply_fix(cluster: Cluster, fault: Fault, finding: dict[str, Any]) -> None:
    """Every step of the fix, word for word."""
    touched(cluster)
    assert finding["fix"], finding
    for step in finding["fix"]:
        if step["on"] == "by hand":
            assert fault.by_hand is not None, f"a fix by hand was not expected: {step['command']}"
            fault.by_hand(cluster)
        elif step["on"] == "here":
            environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-c", step["command"]], cwd=ROOT, env=environment, check=False,
                capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        else:
            done = cluster.lab.host(step["on"]).ssh(step["command"], timeout_s=300)
            assert done.returncode == 0, f"{step['command']}: {done.stderr}"


def commit() -> str:
    """What is tested: a commit, marked where the working tree differs from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return said.stdout.strip()


def results(of: str) -> Path:
    """The results of one commit: rows of different commits make no table."""
    return ROOT / ".cache" / "doctor-faults" / f"{of}.json"


def kept(of: str) -> dict[str, dict[str, Any]]:
    """Rows by name."""
    path = results(of)
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(name: str, row: dict[str, Any]) -> None:
    """Add a row to the results, from which the table is written. Two runs may do so at once."""
    path = results(commit())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = kept(commit()) | {name: row}
        path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


def proven(name: str) -> bool:
    """Whether this very commit has a result, and the run that is cut short shall go on from it."""
    return bool(os.environ.get("RESUME")) and name in kept(commit())
