"""A host's fingerprint, brought to this machine at the end of a run."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.api.state import StateStage
from pyinfra.context import host

from vllm_cluster.control import fingerprints
from vllm_cluster.facts.fingerprint import FingerprintFact
from vllm_cluster.spec import Cluster


@operation()
def kept(cluster: Cluster, weights: str) -> Generator[StringCommand, None, None]:
    """Keep what the host consists of, for a rebuild of it. Changes nothing on the host."""
    yield from ()
    if host.state.current_stage != StateStage.Execute:
        host.noop("read at the end of a run")
        return
    found: dict[str, str] = host.get_fact(FingerprintFact, weights=weights)
    fingerprints.keep(cluster, host.name, found)
    host.noop("the fingerprint is kept")
