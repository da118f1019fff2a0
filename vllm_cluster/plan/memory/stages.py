"""Which layers each pipeline stage holds."""

from __future__ import annotations

from vllm_cluster.plan.memory.facts import Layout, LayoutError


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage by vLLM's own rule.

    vLLM, distributed/utils.py `get_pp_indices` (same in 0.32.0 and 0.33.0): an
    even split; what is left over goes one each to the stages before the last,
    counted from the back, so that the last stage, which also has the head, and
    if possible the first, which has the embedding, stay small.
    """
    each, over = divmod(layers, stages)
    parts = [each] * stages
    for back in range(2, over + 2):
        parts[-back] += 1
    return tuple(parts)


def stage_layers(layers: int, layout: Layout) -> tuple[tuple[int, int], ...]:
    """First and past-the-last layer of every stage.

    Raises LayoutError for a partition that vLLM would refuse, and for a stage
    without layers, which vLLM accepts and which then holds a GPU for nothing.
    """
    parts = layout.partition
    if parts is None:
        parts = split_layers(layers, layout.pipeline)
    elif len(parts) != layout.pipeline:
        raise LayoutError(
            f"VLLM_PP_LAYER_PARTITION names {len(parts)} stages, pipeline is {layout.pipeline}"
        )
    elif sum(parts) != layers:
        raise LayoutError(
            f"VLLM_PP_LAYER_PARTITION adds up to {sum(parts)} layers, the model has {layers}"
        )
    if min(parts) < 1:
        raise LayoutError(
            f"{layout.pipeline} pipeline stages for {layers} layers leave a stage empty; "
            f"use at most {layers}"
        )
    bounds, start = [], 0
    for part in parts:
        bounds.append((start, start + part))
        start += part
    return tuple(bounds)
