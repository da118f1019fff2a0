"""A rebuild whose machine was taken and which has not ended: what a second run goes on from."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_cluster.control import written
from vllm_cluster.control.fingerprints import Kept
from vllm_cluster.spec import Cluster


@dataclass(frozen=True)
class Begun:
    """The key under which the new system is known, and the fingerprint that it shall have.

    `since_s`: when the rebuild was last at work, in seconds since the epoch.
    """

    key: str
    before: Kept | None
    since_s: float = 0.0

    @property
    def when(self) -> str:
        """For people, in the time of this machine."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since_s))


def file_of(cluster: Cluster, host: str) -> Path:
    """Where it is kept: beside the description."""
    return cluster.file.parent / ".state" / cluster.description.cluster / "rebuild" / f"{host}.json"


def read(cluster: Cluster, host: str) -> Begun | None:
    """The rebuild that has not ended; None where there is none, or it is not as we write it."""
    path = file_of(cluster, host)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        before = data["before"]
        kept = None if before is None else Kept(dict(before["values"]), float(before["taken_s"]))
        since_s = float(data.get("since_s", path.stat().st_mtime))
        return Begun(str(data["key"]), kept, since_s)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(cluster: Cluster, host: str, begun: Begun) -> None:
    """Keep it until `end`."""
    path = file_of(cluster, host)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = begun.before
    kept = None if before is None else {"values": dict(before.values), "taken_s": before.taken_s}
    data = {"key": begun.key, "before": kept, "since_s": begun.since_s}
    written.replace_text(path, json.dumps(data) + "\n")


def touch(cluster: Cluster, host: str) -> None:
    """It was at work until now, so that what its own deploy kept is no later deploy's."""
    begun = read(cluster, host)
    if begun is not None:
        write(cluster, host, replace(begun, since_s=time.time()))


def end(cluster: Cluster, host: str) -> None:
    """It came to its end."""
    file_of(cluster, host).unlink(missing_ok=True)
