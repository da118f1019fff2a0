"""Hosts' fingerprints as deploys left them, kept on this machine: a dead host cannot be asked."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.control import written
from vllm_cluster.plan.fingerprint import Fingerprint
from vllm_cluster.spec import Cluster


@dataclass(frozen=True)
class Kept:
    """A fingerprint and when it was taken, in seconds since the epoch."""

    values: Fingerprint
    taken_s: float

    @property
    def when(self) -> str:
        """For people, in the time of this machine."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.taken_s))


def file_of(cluster: Cluster, host: str) -> Path:
    """Where the fingerprint of a host is kept: beside the description."""
    name = cluster.description.cluster
    return cluster.file.parent / ".state" / name / "fingerprints" / f"{host}.json"


def keep(cluster: Cluster, host: str, values: Fingerprint) -> None:
    """Keep what a host consists of now, in place of what was kept before."""
    path = file_of(cluster, host)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = {"taken_s": time.time(), "values": dict(sorted(values.items()))}
    written.replace_text(path, json.dumps(data, indent=1) + "\n")


def kept(cluster: Cluster, host: str) -> Kept | None:
    """What was kept last; None where nothing was, or not as we write it."""
    try:
        data = json.loads(file_of(cluster, host).read_text(encoding="utf-8"))
        return Kept({str(k): str(v) for k, v in data["values"].items()}, float(data["taken_s"]))
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
