"""What of the hosts' sections only shows against the rest of the description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_cluster.spec.source import Path_

if TYPE_CHECKING:
    from vllm_cluster.spec.checks import Parts

Finding = tuple[Path_, str, str]

RESERVED_ENV = {
    "NCCL_IB_HCA": "rdma.devices",
    "NCCL_IB_DISABLE": "nothing here: it follows from rdma",
    "NCCL_IB_GID_INDEX": "rdma.gid_index: the index drifts, so it is found at every start",
}


def driver_is_named(parts: Parts) -> Iterator[Finding]:
    """An install needs a branch, and a version belongs to its branch."""
    driver = parts.driver
    if driver is None:
        return
    if driver.install and driver.branch is None and driver.version is None:
        found = "true without driver.branch"
        yield ("driver", "install"), found, 'a branch to install, such as branch: "580"'
    if driver.branch and driver.version and not driver.version.startswith(f"{driver.branch}."):
        accepted = f"a version of branch {driver.branch}"
        yield ("driver", "version"), driver.version, accepted


def rdma_follows(parts: Parts) -> Iterator[Finding]:
    """NCCL's settings for RDMA come from the section rdma alone."""
    for key in parts.serve.env if parts.serve is not None else ():
        if key in RESERVED_ENV:
            yield ("serve", "env", key), f"the variable {key}", RESERVED_ENV[key]


CHECKS = (driver_is_named, rdma_follows)
