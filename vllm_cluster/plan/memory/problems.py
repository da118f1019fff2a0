"""Why a layout does not fit; sentences with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from vllm_cluster.plan.memory.facts import Serving
from vllm_cluster.plan.memory.text import gib

if TYPE_CHECKING:
    from vllm_cluster.plan.memory.fit import RankMemory


def rank_problems(
    ranks: Sequence[RankMemory], serving: Serving, kv_bytes: int | None
) -> tuple[str, ...]:
    """What stops the first rank that cannot start; sentences with numbers."""
    utilization = serving.gpu_memory_utilization
    for rank in ranks:
        outside = rank.allowance.outside_bytes
        if kv_bytes is None and rank.gpu.memory_bytes - outside < rank.requested_bytes:
            return (
                f"rank {rank.rank}: gpu_memory_utilization {utilization} asks for "
                f"{gib(rank.requested_bytes)} of {gib(rank.gpu.memory_bytes)}, but the CUDA "
                f"context and NCCL take {gib(outside)} beside it",
            )
        need = rank.weights.total_bytes + rank.allowance.inside_bytes
        if kv_bytes is None and rank.kv_available_bytes <= 0:
            return (
                f"rank {rank.rank}: weights of {gib(rank.weights.total_bytes)} and an allowance of "
                f"{gib(rank.allowance.inside_bytes)} are {gib(need)}, more than the "
                f"{gib(rank.requested_bytes)} that vLLM may use of {rank.gpu.name}",
            )
        if kv_bytes is not None and need + outside + kv_bytes > rank.gpu.memory_bytes:
            return (
                f"rank {rank.rank}: {gib(kv_bytes)} of KV cache are asked for beside "
                f"{gib(need + outside)} of weights and allowance, {rank.gpu.name} has "
                f"{gib(rank.gpu.memory_bytes)}",
            )
    return ()


def cache_problems(serving: Serving, length: int, per_request: int, blocks: int) -> tuple[str, ...]:
    """What the KV cache cannot hold. One block always stays with vLLM (its null block)."""
    if not per_request:
        return ()
    wanted = serving.full_requests or 1.0
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
