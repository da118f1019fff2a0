"""The lock file, kept beside the description and committed with it.

`prod.yaml` has `prod.lock.json`. Here are its `models`: what a named revision turned out to be; the
rest is control.pinned's. The first run that gets a revision from a hub, a host or a share
writes what it is; every later run, from any machine, refuses anything else under that name.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_cluster.control import written
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import Cluster, DescriptionError, Problem

_SHA256 = re.compile(r"[0-9a-f]{64}")


def lock_file(cluster: Cluster) -> Path:
    """Where it is kept."""
    return cluster.file.with_suffix(".lock.json")


def read(cluster: Cluster, revision: str) -> ModelId | None:
    """What is written of the description's model at `revision`; None when nothing is.

    Raises DescriptionError where the file cannot be read as one of ours.
    """
    file = lock_file(cluster)
    try:
        entry = load(file).get("models", {}).get(_key(cluster, revision))
        if entry is None:
            return None
        found = ModelId(revision, str(entry["identity"]), int(entry["bytes"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise broken(file, str(error)) from None
    if not _SHA256.fullmatch(found.identity):
        raise broken(file, f"the identity {found.identity!r}")
    return found


def record(cluster: Cluster, model: ModelId) -> bool:
    """Write what `model.revision` is; False when it is written already.

    Raises DescriptionError when it is written as another: two runs at once obtained two models.
    """
    file = lock_file(cluster)
    with alone(cluster):
        known = read(cluster, model.revision)
        if known is not None:
            refuse_other(cluster, known, model)
            return False
        content = load(file)
        content.setdefault("models", {})[_key(cluster, model.revision)] = {
            "identity": model.identity, "bytes": model.total_bytes,
        }  # fmt: skip
        save(file, content)
    return True


@contextmanager
def alone(cluster: Cluster) -> Iterator[None]:
    """One reader who writes at a time, in all processes of this machine. No file stays behind."""
    file = lock_file(cluster)
    guard = file.with_name(f".{file.name}.guard")
    while True:
        with guard.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Who had it before us removed it; by its name others may hold a new one.
            if not _lies_at(guard, held.fileno()):
                continue
            try:
                yield
            finally:
                guard.unlink(missing_ok=True)
            return


def _lies_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def load(file: Path) -> dict[str, Any]:
    """The whole file; empty where there is none. Raises OSError, ValueError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def save(file: Path, content: dict[str, Any]) -> None:
    """Write the whole file, at once or not at all."""
    written.replace_text(file, json.dumps(content, indent=2, sort_keys=True) + "\n")


def refuse_other(cluster: Cluster, known: ModelId, found: ModelId) -> None:
    """Raise DescriptionError when `found` is another model than the one that is written."""
    if known.identity == found.identity:
        return
    words = (
        f"{found.revision}, whose files are {found.identity[:16]}; {lock_file(cluster).name} says "
        f"{known.identity[:16]}"
    )
    accepted = "the files that it was, or another name for these: a revision never changes"
    raise DescriptionError(
        cluster.file, [cluster.problem("model", "revision", found=words, accepted=accepted)]
    )


def _key(cluster: Cluster, revision: str) -> str:
    return f"{cluster.description.model.directory}@{revision}"


def broken(file: Path, reason: str) -> DescriptionError:
    """What to raise where the file is not as it was written."""
    accepted = "the file as a run wrote it; take it back from version control, or remove it"
    return DescriptionError(file, [Problem(0, "", reason, accepted)])
