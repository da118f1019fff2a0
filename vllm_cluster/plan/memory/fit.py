"""One model in one layout on given GPUs: what lies where, and how much KV cache is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from vllm_cluster.plan.memory.allowance import (
    Allowance,
    BatchLimits,
    allowance,
    batch_limits,
    in_flight_tokens,
)
from vllm_cluster.plan.memory.facts import GpuFacts, Layout, LayoutError, ModelFacts, Serving
from vllm_cluster.plan.memory.kvgroups import (
    Group,
    blocks_per_request,
    bytes_per_block,
    group_layers,
)
from vllm_cluster.plan.memory.kvspec import layer_specs
from vllm_cluster.plan.memory.text import gib
from vllm_cluster.plan.memory.weights import StageWeights, check_split, stage_weights


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of one GPU: rank = pp_rank x TP + tp_rank."""

    rank: int
    tp_rank: int
    pp_rank: int
    gpu: GpuFacts
    weights: StageWeights
    allowance: Allowance
    requested_bytes: int
    kv_available_bytes: int
    kv_bytes_per_block: int
    kv_blocks: int
    kv_used_bytes: int

    @property
    def free_bytes(self) -> int:
        """Left over when weights, allowance and the KV cache of the smallest rank are in place."""
        used = self.weights.total_bytes + self.allowance.inside_bytes + self.kv_used_bytes
        return self.gpu.memory_bytes - used - self.allowance.outside_bytes

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "rank"."""
        return {
            "rank": self.rank,
            "tp_rank": self.tp_rank,
            "pp_rank": self.pp_rank,
            "gpu": self.gpu.name,
            "gpu_bytes": self.gpu.memory_bytes,
            "layers": [self.weights.first_layer, self.weights.past_layer],
            "weights_bytes": self.weights.total_bytes,
            "allowance_bytes": self.allowance.inside_bytes,
            "outside_bytes": self.allowance.outside_bytes,
            "requested_bytes": self.requested_bytes,
            "kv_available_bytes": self.kv_available_bytes,
            "kv_bytes_per_block": self.kv_bytes_per_block,
            "kv_blocks": self.kv_blocks,
            "kv_used_bytes": self.kv_used_bytes,
            "free_bytes": self.free_bytes,
        }


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout on GPUs. `problems` is empty when vLLM would start and hold what is asked."""

    model: ModelFacts
    layout: Layout
    serving: Serving
    max_model_len: int
    limits: BatchLimits
    groups: tuple[Group, ...]
    ranks: tuple[RankMemory, ...]
    blocks_per_request: int
    problems: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing is in the way."""
        return not self.problems

    @property
    def kv_blocks(self) -> int:
        """Blocks of the pool: those of the smallest rank, on every rank."""
        return min((r.kv_blocks for r in self.ranks), default=0)

    @property
    def concurrency(self) -> float:
        """Requests of max_model_len that the cache holds: vLLM's "Maximum concurrency"."""
        if not self.blocks_per_request:
            return float(self.limits.max_num_seqs)
        return self.kv_blocks / self.blocks_per_request

    @property
    def kv_tokens(self) -> int:
        """vLLM's "GPU KV cache size": concurrency x max_model_len."""
        return int(self.concurrency * self.max_model_len) if self.blocks_per_request else 0

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes that a token of a long request takes on the fullest rank."""
        if not self.blocks_per_request:
            return 0
        block = max(r.kv_bytes_per_block for r in self.ranks)
        return block * self.blocks_per_request // self.max_model_len

    @property
    def margin_bytes(self) -> int:
        """Memory that vLLM leaves alone on the tightest GPU, beside context and NCCL."""
        return min(
            r.gpu.memory_bytes - r.requested_bytes - r.allowance.outside_bytes for r in self.ranks
        )

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "fit"."""
        return {
            "model": self.model.name,
            "layout": layout_json(self.layout),
            "fits": self.fits,
            "problems": list(self.problems),
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.limits.max_num_batched_tokens,
            "max_num_seqs": self.limits.max_num_seqs,
            "gpu_memory_utilization": self.serving.gpu_memory_utilization,
            "kv_cache_dtype": self.serving.kv_cache_dtype,
            "kv_blocks": self.kv_blocks,
            "kv_blocks_per_request": self.blocks_per_request,
            "kv_tokens": self.kv_tokens,
            "kv_token_bytes": self.kv_token_bytes,
            "max_concurrency": round(self.concurrency, 2),
            "margin_bytes": self.margin_bytes,
            "ranks": [rank.to_json() for rank in self.ranks],
        }


def layout_json(layout: Layout) -> dict[str, Any]:
    """See docs/plan-json.md, "layout"."""
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "partition": list(layout.partition) if layout.partition else None,
        "expert_parallel": layout.expert_parallel,
    }


def fit(
    model: ModelFacts,
    layout: Layout,
    serving: Serving,
    gpus: Sequence[GpuFacts],
    *,
    kv_available_bytes: int | None = None,
) -> Fit:
    """Memory of every rank of one replica.

    `gpus` are the GPUs of one replica in rank order, TP innermost; their number
    must be tensor x pipeline. `kv_available_bytes` sets the KV cache instead of
    computing it (vLLM's --kv-cache-memory-bytes).

    Raises LayoutError when vLLM would refuse the layout whatever the memory.
    """
    if len(gpus) != layout.gpus_per_replica:
        raise LayoutError(f"{layout} needs {layout.gpus_per_replica} GPUs, {len(gpus)} given")
    check_split(model, layout)
    max_model_len = serving.max_model_len or model.default_max_model_len
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes)
    limits = batch_limits(serving, smallest, layout, max_model_len)
    hybrid = not serving.disable_hybrid_kv_cache_manager
    groups = group_layers(layer_specs(model, layout, serving, smallest), hybrid=hybrid)
    stages = stage_weights(model, layout, serving)
    fixed = kv_available_bytes or serving.kv_cache_memory_bytes
    asked = _Asked(model, layout, serving, limits, groups, max_model_len, fixed)
    drafts = [_rank(asked, stages, index, gpu) for index, gpu in enumerate(gpus)]
    blocks = min((rank.kv_blocks for rank in drafts), default=0)
    # Every rank makes as many blocks as the smallest one can.
    ranks = tuple(replace(r, kv_used_bytes=blocks * r.kv_bytes_per_block) for r in drafts)
    per_request = blocks_per_request(
        groups, max_model_len, in_flight_tokens(serving, limits, layout)
    )
    problems = _rank_problems(ranks, asked) or _cache_problems(asked, per_request, blocks)
    return Fit(model, layout, serving, max_model_len, limits, groups, ranks, per_request, problems)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is the same for all ranks of a fit."""

    model: ModelFacts
    layout: Layout
    serving: Serving
    limits: BatchLimits
    groups: tuple[Group, ...]
    max_model_len: int
    kv_bytes: int | None


def _rank(asked: _Asked, stages: tuple[StageWeights, ...], index: int, gpu: GpuFacts) -> RankMemory:
    pp_rank, tp_rank = divmod(index, asked.layout.tensor)
    weights = stages[pp_rank]
    bounds = (weights.first_layer, weights.past_layer)
    extra = allowance(
        asked.model,
        asked.layout,
        asked.serving,
        limits=asked.limits,
        stage=bounds,
        max_model_len=asked.max_model_len,
    )
    requested = ceil(gpu.memory_bytes * asked.serving.gpu_memory_utilization)
    available = requested - weights.total_bytes - extra.inside_bytes
    if asked.kv_bytes is not None:
        available = asked.kv_bytes
    block = bytes_per_block(asked.groups, *bounds)
    return RankMemory(
        rank=index,
        tp_rank=tp_rank,
        pp_rank=pp_rank,
        gpu=gpu,
        weights=weights,
        allowance=extra,
        requested_bytes=requested,
        kv_available_bytes=available,
        kv_bytes_per_block=block,
        kv_blocks=max(available, 0) // block if block else 0,
        kv_used_bytes=0,
    )


def _rank_problems(ranks: Sequence[RankMemory], asked: _Asked) -> tuple[str, ...]:
    """What stops the first rank that cannot start; sentences with numbers."""
    utilization = asked.serving.gpu_memory_utilization
    for rank in ranks:
        outside = rank.allowance.outside_bytes
        if asked.kv_bytes is None and rank.gpu.memory_bytes - outside < rank.requested_bytes:
            return (
                f"rank {rank.rank}: gpu_memory_utilization {utilization} asks for "
                f"{gib(rank.requested_bytes)} of {gib(rank.gpu.memory_bytes)}, but the CUDA "
                f"context and NCCL take {gib(outside)} beside it",
            )
        need = rank.weights.total_bytes + rank.allowance.inside_bytes
        if asked.kv_bytes is None and rank.kv_available_bytes <= 0:
            return (
                f"rank {rank.rank}: weights of {gib(rank.weights.total_bytes)} and an allowance of "
                f"{gib(rank.allowance.inside_bytes)} are {gib(need)}, more than the "
                f"{gib(rank.requested_bytes)} that vLLM may use of {rank.gpu.name}",
            )
        if asked.kv_bytes is not None and need + outside + asked.kv_bytes > rank.gpu.memory_bytes:
            return (
                f"rank {rank.rank}: {gib(asked.kv_bytes)} of KV cache are asked for beside "
                f"{gib(need + outside)} of weights and allowance, {rank.gpu.name} has "
                f"{gib(rank.gpu.memory_bytes)}",
            )
    return ()


def _cache_problems(asked: _Asked, per_request: int, blocks: int) -> tuple[str, ...]:
    """What the KV cache cannot hold. One block always stays with vLLM (its null block)."""
    if not per_request:
        return ()
    length, wanted = asked.max_model_len, asked.serving.full_requests or 1.0
    if blocks - 1 < per_request:
        return (
            f"one request of {length} tokens needs {per_request} KV cache blocks, "
            f"the smallest rank has {max(blocks - 1, 0)}",
        )
    if blocks < wanted * per_request:
        return (
            f"{wanted:g} requests of {length} tokens need {ceil(wanted * per_request)} KV cache "
            f"blocks, the smallest rank has {blocks}: enough for {blocks / per_request:.2f}",
        )
    return ()
