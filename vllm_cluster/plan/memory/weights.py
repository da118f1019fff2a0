"""Bytes of weights on a rank: what vLLM's worker holds after loading."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil

from vllm_cluster.plan.memory.divide import VOCAB_PADDING, rank_elements
from vllm_cluster.plan.memory.facts import (
    DTYPE_BYTES,
    DTYPE_NAMES,
    Layout,
    LayoutError,
    ModelFacts,
    Serving,
    Tensor,
)
from vllm_cluster.plan.memory.placement import Place, place_of
from vllm_cluster.plan.memory.split import (
    is_expert,
    is_fused_experts,
    module_and_part,
    stays_f32,
)
from vllm_cluster.plan.memory.stages import stage_layers

EMBEDDING_PLACES = (Place.EMBEDDING_FIRST, Place.EMBEDDING_ALL, Place.EMBEDDING_ENDS)
HEAD_PLACES = (Place.HEAD_LAST, Place.HEAD_ALL)
_FLOATS = ("F64", "F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Weights on each rank of one pipeline stage, in bytes.

    `derived_bytes` are made while loading and not in the checkpoint: the
    decompression matrices of latent attention in the model's dtype.
    """

    first_layer: int
    past_layer: int
    loaded_bytes: int
    derived_bytes: int
    embedding_bytes: int
    head_bytes: int

    @property
    def total_bytes(self) -> int:
        """All weights on one GPU of the stage."""
        return self.loaded_bytes + self.derived_bytes


def serving_dtype(model: ModelFacts, serving: Serving) -> str:
    """The dtype of activations and unquantised weights.

    vLLM config/model.py `_resolve_auto_dtype` (0.32.0): auto is the
    checkpoint's, but 32-bit checkpoints are served in bf16, pooling models
    among them in fp16.
    """
    if serving.dtype != "auto":
        return DTYPE_NAMES[serving.dtype]
    if model.dtype != "F32":
        return model.dtype
    return "F16" if model.runner == "pooling" else "BF16"


@dataclass(frozen=True, slots=True)
class WeightTable:
    """Bytes on one rank, before they are gathered into stages.

    `layer_sums` has the running sum over layers, so that a stage is one subtraction.
    """

    layer_sums: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    last_bytes: int
    everywhere_bytes: int
    derived_layer_bytes: int
    embedding_place: Place
    head_place: Place


def stage_weights(model: ModelFacts, layout: Layout, serving: Serving) -> tuple[StageWeights, ...]:
    """Bytes of weights per GPU for every stage of one replica.

    Raises LayoutError for a partition that vLLM would refuse.
    """
    bounds = stage_layers(model.layers, layout)
    ranks = layout.tensor * layout.data if layout.expert_parallel else 1
    table = weight_table(model, layout.tensor, ranks, serving_dtype(model, serving))
    last = len(bounds) - 1
    stages = []
    for stage, (first, past) in enumerate(bounds):
        embedding = table.embedding_bytes if _holds(table.embedding_place, stage, last) else 0
        head = table.head_bytes if _holds(table.head_place, stage, last) else 0
        loaded = table.layer_sums[past] - table.layer_sums[first] + embedding + head
        loaded += table.everywhere_bytes + (table.last_bytes if stage == last else 0)
        derived = table.derived_layer_bytes * (past - first)
        stages.append(StageWeights(first, past, loaded, derived, embedding, head))
    return tuple(stages)


def _holds(place: Place, stage: int, last: int) -> bool:
    """Whether a stage has a tensor of this place."""
    if place in (Place.EMBEDDING_ALL, Place.HEAD_ALL):
        return True
    if place is Place.EMBEDDING_ENDS:
        return stage in (0, last)
    return stage == (0 if place is Place.EMBEDDING_FIRST else last)


@lru_cache(maxsize=128)
def weight_table(model: ModelFacts, tp: int, expert_ranks: int, dtype: str) -> WeightTable:
    """Bytes of every layer on one rank, made once for each way of dividing a model.

    `expert_ranks` above 1 deals whole experts out over so many ranks.
    """
    layers, sums = [0] * model.layers, dict.fromkeys(Place, 0)
    seen: dict[tuple[str, tuple[int, ...], str, int], tuple[Place, int]] = {}
    embedding_place, head_place = Place.EMBEDDING_FIRST, Place.HEAD_LAST
    for tensor in model.tensors:
        if tensor.layer is not None and tensor.layer >= model.layers:
            continue
        # Layers repeat each other: what a tensor weighs is found once for all of them.
        kind = (tensor.name.replace(f".{tensor.layer}.", ".#.", 1), tensor.shape)
        key = (*kind, tensor.dtype, tensor.count)
        if key not in seen:
            size = rank_bytes(model, tensor, tp, expert_ranks, dtype)
            seen[key] = (place_of(model, tensor), size)
        place, size = seen[key]
        if place is Place.LAYER:
            if tensor.layer is not None:
                layers[tensor.layer] += size
            continue
        sums[place] += size
        if place in EMBEDDING_PLACES:
            embedding_place = place
        elif place in HEAD_PLACES:
            head_place = place
    return WeightTable(
        layer_sums=(0, *accumulate(layers)),
        embedding_bytes=sum(sums[place] for place in EMBEDDING_PLACES),
        head_bytes=sum(sums[place] for place in HEAD_PLACES),
        last_bytes=sums[Place.LAST],
        everywhere_bytes=sums[Place.EVERYWHERE],
        derived_layer_bytes=_mla_derived_bytes(model, tp, dtype),
        embedding_place=embedding_place,
        head_place=head_place,
    )


def rank_bytes(model: ModelFacts, tensor: Tensor, tp: int, expert_ranks: int, dtype: str) -> int:
    """Bytes of one kind of tensor on one rank of its stage."""
    element = tensor.dtype
    if element in _FLOATS:
        element = "F32" if stays_f32(tensor) or _scale_of_bytes(model, tensor) else dtype
    width = DTYPE_BYTES[element]
    if is_expert(tensor) and expert_ranks > 1:
        if is_fused_experts(tensor):
            each = tensor.elements // tensor.shape[0]
            return ceil(tensor.shape[0] / expert_ranks) * each * width
        return ceil(tensor.count / expert_ranks) * tensor.elements * width
    return tensor.count * rank_elements(model, tensor, tp) * width


def _scale_of_bytes(model: ModelFacts, tensor: Tensor) -> bool:
    """Scales of 8-bit weights are 32 bits wide in vLLM whatever the file says."""
    q = model.quantization
    _, part = module_and_part(tensor.name)
    return part == "weight_scale" and q is not None and q.bits == 8


def _mla_derived_bytes(model: ModelFacts, tp: int, dtype: str) -> int:
    """W_UK and W_UV of one layer in the model's dtype, made from kv_b_proj.

    vLLM layers/attention/mla_attention.py `process_weights_after_loading`:
    kv_b_proj is kept for prefill, its two halves are kept beside it for decode.
    """
    if model.mla is None:
        return 0
    wide = model.mla.qk_nope_head_dim + model.mla.v_head_dim
    heads = ceil(model.query_heads / tp)
    return heads * wide * model.mla.kv_lora_rank * DTYPE_BYTES[dtype]


def check_split(model: ModelFacts, layout: Layout) -> None:
    """Raise LayoutError where vLLM stops on a tensor that it cannot divide."""
    tp = layout.tensor
    if model.query_heads % tp:
        raise LayoutError(
            f"{model.query_heads} attention heads cannot be divided over TP={tp}; "
            f"possible: {', '.join(str(n) for n in divisors(model.query_heads, 64))}"
        )
    if model.mla is None and model.kv_heads % tp and tp % model.kv_heads:
        raise LayoutError(
            f"{model.kv_heads} key-value heads neither divide over TP={tp} nor repeat evenly on it"
        )
    padded = ceil(model.vocab / VOCAB_PADDING) * VOCAB_PADDING
    if padded % tp:
        raise LayoutError(f"a vocabulary padded to {padded} rows cannot be divided over TP={tp}")
    _check_intermediate(model, layout)


def _check_intermediate(model: ModelFacts, layout: Layout) -> None:
    tp, experts, q = layout.tensor, model.experts, model.quantization
    dense = experts is None or len(experts.layers) < model.layers
    sides = [("MLP", model.intermediate)] if dense else []
    if experts is not None and not layout.expert_parallel:
        sides.append(("expert", experts.intermediate))
    for what, side in sides:
        if q is not None and q.method == "mxfp4" and what == "expert":
            continue
        if side % tp:
            raise LayoutError(f"an {what} of width {side} cannot be divided over TP={tp}")
        step = 1
        if q is not None and q.block is not None:
            step = q.block[0]
        elif q is not None and q.group > 0:
            step = q.group
        if tp > 1 and side // tp % step:
            raise LayoutError(
                f"{what} width {side} over TP={tp} leaves {side // tp} per GPU, which is not a "
                f"multiple of the {q.method if q else ''} block of {step}"
            )


def divisors(number: int, most: int) -> list[int]:
    """Divisors of a number up to `most`."""
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]
