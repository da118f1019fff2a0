"""Checks: pure functions from a case to findings. The order is of no matter; causes.py sorts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import (
    collective,
    docker,
    firewall,
    generation,
    gpu,
    gpu_health,
    host,
    memory,
    model,
    names,
    network,
    ray,
    ray_starting,
    rdma,
    recovery,
    run,
    security,
    storage,
    units,
    vllm,
)
from vllm_cluster.doctor.finding import Finding

Check = Callable[[Case], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    *run.CHECKS, *generation.CHECKS, *host.CHECKS, *storage.CHECKS, *network.CHECKS,
    *names.CHECKS, *docker.CHECKS, *gpu.CHECKS, *gpu_health.CHECKS, *units.CHECKS,
    *firewall.CHECKS, *security.CHECKS, *memory.CHECKS, *model.CHECKS, *ray.CHECKS,
    *ray_starting.CHECKS, *rdma.CHECKS, *collective.CHECKS, *vllm.CHECKS, *recovery.CHECKS,
)  # fmt: skip


def findings(case: Case) -> Iterator[Finding]:
    """What every check says of `case`."""
    for check in CHECKS:
        yield from check(case)
