"""How vLLM puts layers into KV cache groups, and what a block then costs on a stage.

Follows v1/core/kv_cache_utils.py of vLLM 0.32.0 (kv_cache_planning.py in
0.33.0): `get_kv_cache_groups`, `unify_kv_cache_spec_page_size`,
`_get_kv_cache_groups_uniform_page_size`, `_project_kv_cache_groups_to_worker`.
All groups draw their blocks from one pool, so a block must be as large as the
largest group's layers need, and a request takes blocks for every group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from vllm_cluster.plan.memory.kvspec import LayerSpec


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table. `specs` belong to `layers`, one each."""

    layers: tuple[int, ...]
    specs: tuple[LayerSpec, ...]

    def blocks_per_request(self, max_model_len: int, in_flight_tokens: int) -> int:
        """Blocks of this group that one full request holds."""
        return max(s.blocks_per_request(max_model_len, in_flight_tokens) for s in self.specs)

    def bytes_per_block(self, first_layer: int, past_layer: int) -> int:
        """Bytes of one block for the group's layers on a stage."""
        return sum(
            spec.page_bytes
            for layer, spec in zip(self.layers, self.specs, strict=True)
            if first_layer <= layer < past_layer
        )


def group_layers(specs: Sequence[LayerSpec], *, hybrid: bool = True) -> tuple[Group, ...]:
    """The KV cache groups of a whole model.

    With `hybrid` False (--disable-hybrid-kv-cache-manager), windows are cached
    like full attention.
    """
    if not specs:
        return ()
    if not hybrid and len({s.kind for s in specs}) > 1:
        specs = [_as_full(s) for s in specs]
    if _one_table(specs):
        return (Group(tuple(range(len(specs))), tuple(specs)),)
    specs = _equal_pages(specs)
    buckets: dict[LayerSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(layer)
    groups = []
    size = _group_size([len(layers) for layers in buckets.values()])
    for spec, layers in buckets.items():
        # Layers are dealt out in turn, so that every pipeline stage has some of each group.
        number = ceil(len(layers) / size)
        for index in range(number):
            dealt = tuple(layers[index::number])
            groups.append(Group(dealt, (spec,) * len(dealt)))
    return tuple(groups)


def _one_table(specs: Sequence[LayerSpec]) -> bool:
    """Whether all layers need the same number of blocks and can share one table."""
    kinds = {"full" if s.kind == "mla" else s.kind for s in specs}
    if len(kinds) > 1 or len({s.block_tokens for s in specs}) > 1:
        return False
    return kinds == {"full"} or len({s.window_tokens for s in specs}) == 1


def _as_full(spec: LayerSpec) -> LayerSpec:
    if spec.kind in ("full", "mla"):
        return spec
    return replace(spec, kind="full", window_tokens=None)


def _equal_pages(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """Smaller pages grow by whole blocks, or are padded, to the largest page."""
    largest = max(s.page_bytes for s in specs)
    equal = []
    for spec in specs:
        if spec.page_bytes == largest:
            equal.append(spec)
        elif largest % spec.page_bytes == 0:
            equal.append(spec.with_block(spec.block_tokens * (largest // spec.page_bytes)))
        else:
            equal.append(replace(spec, padded_page_bytes=largest))
    return equal


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: the rarest kind's count, or the commonest's if they are close."""
    few, many = min(counts), max(counts)
    return many if many < few * 1.5 else few


def bytes_per_block(groups: Sequence[Group], first_layer: int, past_layer: int) -> int:
    """Bytes of one block of the pool on a stage: the widest group decides."""
    return max((g.bytes_per_block(first_layer, past_layer) for g in groups), default=0)


def blocks_per_request(groups: Sequence[Group], max_model_len: int, in_flight_tokens: int) -> int:
    """Blocks of the pool that one request of max_model_len takes."""
    return sum(g.blocks_per_request(max_model_len, in_flight_tokens) for g in groups)
