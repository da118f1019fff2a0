"""One model in one layout on given GPUs: what lies where, and how much KV cache is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from vllm_cluster.plan.memory.problems import cache_problems, rank_problems
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
    ranks = _ranks(asked, stages, gpus)
    blocks = min((rank.kv_blocks for rank in ranks), default=0)
    per_request = blocks_per_request(
        groups, max_model_len, in_flight_tokens(serving, limits, layout)
    )
    problems = rank_problems(ranks, serving, fixed) or cache_problems(
        serving, max_model_len, per_request, blocks
    )
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


def _ranks(
    asked: _Asked, stages: tuple[StageWeights, ...], gpus: Sequence[GpuFacts]
) -> tuple[RankMemory, ...]:
    """Every rank; those of one stage on equal GPUs are worked out once."""
    placed = [(*divmod(index, asked.layout.tensor), gpu) for index, gpu in enumerate(gpus)]
    different = dict.fromkeys((stage, gpu) for stage, _, gpu in placed)
    kinds = {(stage, gpu): _kind(asked, stages[stage], gpu) for stage, gpu in different}
    # Every rank makes as many blocks as the smallest one can.
    blocks = min((kind.kv_blocks for kind in kinds.values()), default=0)
    return tuple(
        RankMemory(
            rank=index,
            tp_rank=tp_rank,
            pp_rank=stage,
            gpu=gpu,
            weights=stages[stage],
            kv_used_bytes=blocks * kinds[stage, gpu].kv_bytes_per_block,
            allowance=kinds[stage, gpu].allowance,
            requested_bytes=kinds[stage, gpu].requested_bytes,
            kv_available_bytes=kinds[stage, gpu].kv_available_bytes,
            kv_bytes_per_block=kinds[stage, gpu].kv_bytes_per_block,
            kv_blocks=kinds[stage, gpu].kv_blocks,
        )
        for index, (stage, tp_rank, gpu) in enumerate(placed)
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What ranks of one stage on equal GPUs have in common."""

    allowance: Allowance
    requested_bytes: int
    kv_available_bytes: int
    kv_bytes_per_block: int
    kv_blocks: int


def _kind(asked: _Asked, weights: StageWeights, gpu: GpuFacts) -> _Kind:
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
    blocks = max(available, 0) // block if block else 0
    return _Kind(extra, requested, available, block, blocks)
