"""What a host is asked to take part in, as written by the control side."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.fetch import Limits
from vllm_cluster.weights.agent.route import Tuning
from vllm_cluster.weights.agent.wire import Peer, plain_address
from vllm_cluster.weights.manifest import ManifestError, check_revision, slug_of

_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")  # stands in a request as it is


@dataclass(frozen=True)
class Job:
    """One host's part in one fan-out.

    chain: every host that takes part, the holders first, in the order in which the bytes travel.
    link_mbit: the measured rate of the fabric, by which a slow host is known; limit_mbit: what
    this host may fetch at. reserve_bytes stay free on the disk; mountpoint must be mounted and
    carry the root. keep: placed copies of this model to keep, older unused ones are removed.
    remove_added: delete files that were put into a placed copy. silence_s: a connection without a
    byte for this long is dead. linger_s: how long a host that has all waits for one that does not
    answer. Times in seconds.
    """

    model: str
    revision: str
    identity: str
    me: str
    chain: tuple[Peer, ...]
    token: str = field(repr=False)
    link_mbit: float | None = None
    limit_mbit: float | None = None
    reserve_bytes: int = 1 << 30
    mountpoint: str | None = None
    keep: int = 2
    remove_added: bool = False
    silence_s: float = 10.0
    linger_s: float = 60.0
    limits: Limits = field(default_factory=Limits)
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def own(self) -> Peer:
        return self.chain[self._position]

    @property
    def _position(self) -> int:
        return [peer.name for peer in self.chain].index(self.me)

    @property
    def before(self) -> list[Peer]:
        """Who comes before this host, nearest first: the order of preference."""
        return list(reversed(self.chain[: self._position]))

    @property
    def others(self) -> list[Peer]:
        return [peer for peer in self.chain if peer.name != self.me]

    @property
    def upstreams(self) -> list[Peer]:
        return self.before + list(self.chain[self._position + 1 :])

    @property
    def known_bytes_s(self) -> float:
        rates = [mbit for mbit in (self.link_mbit, self.limit_mbit) if mbit]
        return min(rates, default=0.0) * 1e6 / 8


def parse_job(text: str) -> Job:
    """Read a job's JSON; unknown keys are refused. Raises WeightsError in words."""
    try:
        value: dict[str, Any] = json.loads(text)
        known = {item.name for item in fields(Job)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise WeightsError(f"the job has unknown keys: {', '.join(unknown)}")
        chain = tuple(Peer(**peer) for peer in value.pop("chain"))
        limits = Limits(**value.pop("limits", {}))
        tuning = Tuning(**value.pop("tuning", {}))
        job = Job(chain=chain, limits=limits, tuning=tuning, **value)
        slug_of(job.model)
        check_revision(job.revision)
        for peer in job.chain:
            plain_address(peer.address)
    except (ValueError, TypeError, KeyError, AttributeError, ManifestError) as exc:
        raise WeightsError(f"the job cannot be read: {exc}") from exc
    names = [peer.name for peer in job.chain]
    strange = [name for name in names if not _NAME.fullmatch(name)]
    if strange:
        raise WeightsError(f"the job's chain has {strange}, which are not names of hosts")
    if job.me not in names or len(set(names)) != len(names):
        raise WeightsError(f"the job's chain {names} must name every host once, and {job.me!r} too")
    if len(job.token) < 16 or not job.token.isascii() or not job.token.isprintable():
        raise WeightsError("the job's token must have 16 printable characters or more")
    return job
