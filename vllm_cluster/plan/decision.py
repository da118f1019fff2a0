"""What a decision is made of: the question, the answer, its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_cluster.plan.memory.facts import GpuFacts, HostFacts, Layout, Serving
from vllm_cluster.plan.memory.fit import Fit, layout_json
from vllm_cluster.plan.memory.traffic import Traffic

Shape = Literal["one gpu", "one host", "several hosts", "replicas"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a person wants to know.

    `layout` None means `parallel: auto`. `force_multi_node` says that several
    hosts are meant though one suffices, `force_tensor_across_hosts` that one
    tensor-parallel group shall span hosts. `rtt_us` is a measured round trip.
    """

    serving: Serving = field(default_factory=Serving)
    layout: Layout | None = None
    force_multi_node: bool = False
    force_tensor_across_hosts: bool = False
    rtt_us: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, and what to write instead. `key` is a stable name for scripts and tests."""

    key: str
    reason: str
    fix: str

    def to_json(self) -> dict[str, str]:
        """See docs/plan-json.md, "refusal"."""
        return {"key": self.key, "reason": self.reason, "fix": self.fix}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank of one replica runs: host by name, GPU by number on it."""

    replica: int
    rank: int
    host: str
    gpu: int

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "place"."""
        return {"replica": self.replica, "rank": self.rank, "host": self.host, "gpu": self.gpu}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that was looked at, and what came of it."""

    layout: Layout
    hosts: int
    fits: bool
    note: str

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "candidate"."""
        return {
            "layout": layout_json(self.layout),
            "hosts": self.hosts,
            "fits": self.fits,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer. `fit` is that of one replica; None when no layout could be weighed at all."""

    verdict: Literal["fits", "refused"]
    layout: Layout | None
    shape: Shape | None
    fit: Fit | None
    places: tuple[Place, ...]
    reasons: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    candidates: tuple[Candidate, ...]
    traffic: Traffic | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts in use, in rank order."""
        return tuple(dict.fromkeys(place.host for place in self.places))

    @property
    def needs_ray(self) -> bool:
        """Whether one replica spans hosts; otherwise vLLM's own mp backend does."""
        return len({p.host for p in self.places if p.replica == 0}) > 1

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "decision"."""
        return {
            "verdict": self.verdict,
            "layout": layout_json(self.layout) if self.layout else None,
            "shape": self.shape,
            "hosts": list(self.hosts),
            "needs_ray": self.needs_ray,
            "reasons": list(self.reasons),
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "places": [place.to_json() for place in self.places],
            "traffic": self.traffic.to_json() if self.traffic else None,
            "fit": self.fit.to_json() if self.fit else None,
        }


def place_ranks(layout: Layout, hosts: Sequence[HostFacts]) -> tuple[Place, ...]:
    """Ranks onto GPUs: TP innermost, hosts filled in order, replicas one after the other.

    A replica that fits on one host never spans two, and a tensor-parallel group
    does so only when whole groups cannot be placed; a host may then have GPUs
    to spare (Ray must not offer those: `ray start --num-gpus`). Returns fewer
    places than ranks when the hosts have too few GPUs.
    """
    size, free = layout.gpus_per_replica, [host.gpus for host in hosts]
    places: list[Place] = []
    for replica in range(layout.data):
        counts = _fill(free, size, size) or _fill(free, size, layout.tensor) or _fill(free, size, 1)
        rank = 0
        for index, count in enumerate(counts or free):
            first = hosts[index].gpus - free[index]
            for gpu in range(first, first + count):
                places.append(Place(replica, rank, hosts[index].name, gpu))
                rank += 1
            free[index] -= count
    return tuple(places)


def _fill(free: Sequence[int], size: int, unit: int) -> list[int] | None:
    """GPUs to take of each host for `size` ranks in whole units; None when they do not fit."""
    counts, left = [], size
    for available in free:
        count = min(available // unit * unit, left)
        counts.append(count)
        left -= count
    return None if left else counts


def replica_gpus(places: Sequence[Place], hosts: Sequence[HostFacts]) -> list[GpuFacts]:
    """The GPUs of the first replica in rank order; of all replicas, the smallest memory counts."""
    by_name = {host.name: host.gpu for host in hosts}
    ranks: dict[int, GpuFacts] = {}
    for place in places:
        gpu = by_name[place.host]
        known = ranks.get(place.rank)
        if known is None or gpu.memory_bytes < known.memory_bytes:
            ranks[place.rank] = gpu
    return [ranks[rank] for rank in sorted(ranks)]


def tensor_group_spans_hosts(layout: Layout, places: Sequence[Place]) -> bool:
    """Whether any tensor-parallel group has ranks on more than one host."""
    groups: dict[tuple[int, int], set[str]] = {}
    for place in places:
        groups.setdefault((place.replica, place.rank // layout.tensor), set()).add(place.host)
    return any(len(names) > 1 for names in groups.values())
