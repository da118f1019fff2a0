"""Who sends a model to whom: one job a host, for the agents. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A connection's receive, hash and write take one core to about 5 Gbit/s (docs/weights.md).
_GBIT_PER_CONNECTION = 4.0
_MAX_CONNECTIONS = 32


@dataclass(frozen=True)
class Host:
    """A host of the cluster: its name, and its address on the fabric."""

    name: str
    address: str


@dataclass(frozen=True)
class Model:
    """Which model: the identity is the manifest's hash, as `obtain` answered it."""

    model: str
    revision: str
    identity: str


def new_token() -> str:
    """The secret of one fan-out; it travels over SSH and lives as long as the job."""
    return secrets.token_urlsafe(32)


def token_of(secret: str, identity: str) -> str:
    """The same secret of a fan-out in every run: a host that comes back joins those still at it.

    `secret` is one that all hosts of the cluster share.
    """
    return hmac.new(secret.encode(), f"fan-out {identity}".encode(), hashlib.sha256).hexdigest()


def connections_for(link_mbit: float | None) -> int:
    """How many connections fill a link of that measured rate; 2 when it is not known."""
    if not link_mbit:
        return 2
    return max(1, min(_MAX_CONNECTIONS, round(link_mbit / 1000 / _GBIT_PER_CONNECTION)))


def make_jobs(
    model: Model,
    holders: Sequence[Host],
    receivers: Sequence[Host],
    *,
    token: str,
    port: int,
    link_mbit: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The job of every host as JSON, by host name.

    The holders come first in the chain, the receivers follow in the order given: put those next to
    each other that share a switch. `options` are other keys of the agent's Job (limit_mbit,
    reserve_bytes, mountpoint, keep, remove_added, …). Raises ValueError without a holder.
    """
    if not holders:
        raise ValueError(f"no host holds {model.model} at {model.revision}: obtain it first")
    hosts = [*holders, *receivers]
    chain = [{"name": host.name, "address": host.address, "port": port} for host in hosts]
    common = {
        "model": model.model,
        "revision": model.revision,
        "identity": model.identity,
        "token": token,
        "chain": chain,
        "link_mbit": link_mbit,
        "limits": {"connections": connections_for(link_mbit)},
        **(options or {}),
    }
    return {host.name: json.dumps({**common, "me": host.name}) for host in hosts}
