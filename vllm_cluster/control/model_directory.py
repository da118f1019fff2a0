"""Where the model is on this machine. `plan` asks no more, and shall not load what hashes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vllm_cluster.spec import Cluster
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.scan import find_model_dir


def directories(cluster: Cluster) -> Iterator[Path]:
    """Every directory of this machine that the description names as a source, in its order."""
    for source in cluster.description.model.ordered:
        if source.here is not None:
            yield cluster.local(source.here)


def directory(cluster: Cluster) -> Path | None:
    """The first of them that is there, inside a hub's cache the revision's own; None without one.

    Raises ValueError for a cache that has not the revision.
    """
    for path in directories(cluster):
        if path.is_dir():
            try:
                return find_model_dir(path, cluster.description.model.revision or "main")
            except WeightsError as error:
                raise ValueError(f"{error.file}: {error.reason}") from None
    return None
