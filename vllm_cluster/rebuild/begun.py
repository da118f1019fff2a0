"""A rebuild whose machine was taken and which has not ended: what a second run goes on from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.control import written
from vllm_cluster.control.fingerprints import Kept
from vllm_cluster.spec import Cluster


@dataclass(frozen=True)
class Begun:
    """The key under which the new system is known, and the fingerprint that it shall have."""

    key: str
    before: Kept | None


def file_of(cluster: Cluster, host: str) -> Path:
    """Where it is kept: beside the description."""
    return cluster.file.parent / ".state" / cluster.description.cluster / "rebuild" / f"{host}.json"


def read(cluster: Cluster, host: str) -> Begun | None:
    """The rebuild that has not ended; None where there is none, or it is not as we write it."""
    try:
        data = json.loads(file_of(cluster, host).read_text(encoding="utf-8"))
        before = data["before"]
        kept = None if before is None else Kept(dict(before["values"]), float(before["taken_s"]))
        return Begun(str(data["key"]), kept)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(cluster: Cluster, host: str, begun: Begun) -> None:
    """Keep it until `end`."""
    path = file_of(cluster, host)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = begun.before
    kept = None if before is None else {"values": dict(before.values), "taken_s": before.taken_s}
    written.replace_text(path, json.dumps({"key": begun.key, "before": kept}) + "\n")


def end(cluster: Cluster, host: str) -> None:
    """It came to its end."""
    file_of(cluster, host).unlink(missing_ok=True)
