"""A KV cache of a size that the description fixes, on processors: whether it holds one request.

With GPUs the memory plan says so. What processors have in memory nobody weighs, and a cache that is
too small is refused by vLLM only at its start.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_cluster.plan.memory.facts import GpuFacts, Layout, LayoutError, ModelFacts, Serving
from vllm_cluster.plan.memory.fit import fit
from vllm_cluster.plan.settle import partition, serving
from vllm_cluster.plan.sizes import concrete
from vllm_cluster.spec.model import Description

# More than any host has: only the cache is judged.
_MEMORY = GpuFacts("CPU", 1 << 60)


def fixed(description: Description) -> int | None:
    """`--kv-cache-memory-bytes`, where processors serve."""
    return serving(description).kv_cache_memory_bytes if description.gpu.kind == "cpu" else None


def missing(description: Description, model: ModelFacts) -> str:
    """Why the cache holds not one request, with the bytes that would; empty where it does."""
    asked = replace(serving(description), full_requests=None)
    # Which processors they are is not known, and latent attention has other blocks without AMX.
    found = [_lacks(description, model, replace(asked, amx_tiles=amx)) for amx in (True, False)]
    return found[0] if all(found) else ""


def _lacks(description: Description, model: ModelFacts, asked: Serving) -> str:
    sizes = concrete(description)
    layout = Layout(sizes.tensor, sizes.pipeline, sizes.replicas, partition(description))
    try:
        one = fit(model, layout, asked, [_MEMORY] * layout.gpus_per_replica)
    except LayoutError:
        return ""
    if one.fits:
        return ""
    # One block always stays with vLLM.
    least = (one.blocks_per_request + 1) * max(rank.kv_bytes_per_block for rank in one.ranks)
    return f"at least {least}, since {one.problems[0]}"
