"""What a picture shows, gathered from a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from vllm_cluster.plan.decision import Decision
from vllm_cluster.plan.decision import Place as RankPlace
from vllm_cluster.plan.memory.facts import HostFacts
from vllm_cluster.plan.memory.fit import Fit, RankMemory
from vllm_cluster.plan.memory.text import count, kib

SegmentKind = Literal["weights", "allowance", "kv", "outside"]
#: What the parts of a memory bar are called, in the order in which they are drawn.
SEGMENT_NAMES: dict[SegmentKind, str] = {
    "weights": "weights",
    "allowance": "activations, graphs, workspace",
    "kv": "KV cache",
    "outside": "CUDA context, NCCL",
}


@dataclass(frozen=True, slots=True)
class HostLabel:
    """What is written on a host beside its name."""

    address: str = ""
    nic: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class GpuBox:
    """One GPU. `rank` is None when nothing runs on it."""

    number: int
    name: str
    total_bytes: int
    rank: int | None = None
    tp_rank: int = 0
    segments: tuple[tuple[SegmentKind, int], ...] = ()

    @property
    def used_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(size for _, size in self.segments)


@dataclass(frozen=True, slots=True)
class StageBox:
    """The GPUs of one host that hold one stage of one replica: a tensor-parallel group.

    `whole` is False when the group goes on on another host.
    """

    replica: int
    stage: int
    first_layer: int
    past_layer: int
    ends: tuple[str, ...]
    gpus: tuple[GpuBox, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class HostBox:
    """One host with its stages and idle GPUs."""

    name: str
    label: HostLabel
    link_gbit_s: float | None
    gpus: str
    stages: tuple[StageBox, ...]
    idle: tuple[GpuBox, ...]


@dataclass(frozen=True, slots=True)
class RankMap:
    """The whole picture. `links` has the text between each host and the next."""

    title: str
    subtitle: tuple[str, ...]
    facts: tuple[str, ...]
    hosts: tuple[HostBox, ...]
    links: tuple[str, ...]
    replicas: int


def rank_map(
    decision: Decision,
    hosts: Sequence[HostFacts],
    labels: Mapping[str, HostLabel] | None = None,
) -> RankMap:
    """The picture of a decision that has a layout, hosts that it does not use included.

    Raises ValueError for a decision without a layout and its memory: there is
    nothing to draw.
    """
    found, layout = decision.fit, decision.layout
    if found is None or layout is None or not decision.places:
        raise ValueError("a decision without a layout has no picture")
    labels = labels or {}
    boxes = tuple(_host(host, labels.get(host.name, HostLabel()), decision) for host in hosts)
    used = len(decision.hosts)
    words = [str(layout), f"{layout.gpus} {'GPU' if layout.gpus == 1 else 'GPUs'}"]
    words.append(f"{used} {'host' if used == 1 else 'hosts'} of {len(hosts)}")
    words.append("Ray" if decision.needs_ray else "no Ray")
    return RankMap(
        title=found.model.name,
        subtitle=tuple(words),
        facts=_facts(found, layout.data),
        hosts=boxes,
        links=_links(decision, hosts),
        replicas=layout.data,
    )


def _facts(found: Fit, replicas: int) -> tuple[str, ...]:
    if not found.blocks_per_request:
        return (f"up to {count(found.max_model_len)} tokens a text, no KV cache",)
    each = " in each replica" if replicas > 1 else ""
    return (
        f"requests of up to {count(found.max_model_len)} tokens, KV cache "
        f"{found.serving.kv_cache_dtype}, {kib(found.kv_token_bytes)} a token and GPU",
        f"KV cache for {count(found.kv_tokens)} tokens = {found.concurrency:.1f} full "
        f"requests at once{each}",
    )


def _host(host: HostFacts, label: HostLabel, decision: Decision) -> HostBox:
    found, layout = decision.fit, decision.layout
    assert found is not None  # noqa: S101 - rank_map has looked
    assert layout is not None  # noqa: S101
    here = [place for place in decision.places if place.host == host.name]
    groups: dict[tuple[int, int], list[RankPlace]] = {}
    for place in here:
        groups.setdefault((place.replica, place.rank // layout.tensor), []).append(place)
    stages = tuple(
        _stage(replica, stage, members, found, host)
        for (replica, stage), members in sorted(groups.items())
    )
    taken = {place.gpu for place in here}
    idle = tuple(
        GpuBox(number, host.gpu.name, host.gpu.memory_bytes)
        for number in range(host.gpus)
        if number not in taken
    )
    gpus = f"{host.gpus} x {host.gpu.name}"
    return HostBox(host.name, label, host.link_gbit_s, gpus, stages, idle)


def _stage(
    replica: int, stage: int, members: Sequence[RankPlace], found: Fit, host: HostFacts
) -> StageBox:
    ranks = [found.ranks[place.rank] for place in members]
    weights = ranks[0].weights
    ends = []
    if weights.embedding_bytes:
        ends.append("embedding")
    if weights.head_bytes or weights.past_layer == found.model.layers:
        ends.append("head")
    return StageBox(
        replica=replica,
        stage=stage,
        first_layer=weights.first_layer,
        past_layer=weights.past_layer,
        ends=tuple(ends),
        gpus=tuple(_gpu(place.gpu, rank, host) for place, rank in zip(members, ranks, strict=True)),
        whole=len(members) == found.layout.tensor,
    )


def _gpu(number: int, rank: RankMemory, host: HostFacts) -> GpuBox:
    return GpuBox(
        number=number,
        name=host.gpu.name,
        total_bytes=host.gpu.memory_bytes,
        rank=rank.rank,
        tp_rank=rank.tp_rank,
        segments=(
            ("weights", rank.weights.total_bytes),
            ("allowance", rank.allowance.inside_bytes),
            ("kv", rank.kv_used_bytes),
            ("outside", rank.allowance.outside_bytes),
        ),
    )


def _links(decision: Decision, hosts: Sequence[HostFacts]) -> tuple[str, ...]:
    """Between neighbours of one replica: what crosses."""
    traffic = decision.traffic
    by_host = {
        name: {p.replica for p in decision.places if p.host == name} for name in decision.hosts
    }
    texts = []
    for first, second in pairwise(hosts):
        shared = by_host.get(first.name, set()) & by_host.get(second.name, set())
        if traffic is None or not shared:
            texts.append("")
            continue
        text = f"{traffic.kind}, {kib(traffic.bytes_per_token)} a token"
        if traffic.tokens_per_s is not None:
            text += f", at most {count(traffic.tokens_per_s)} tokens/s"
        texts.append(text)
    return tuple(texts)
