"""How many elements of a tensor one rank of a tensor-parallel group holds."""

from __future__ import annotations

from math import ceil

from vllm_cluster.plan.memory.facts import ModelFacts, Tensor
from vllm_cluster.plan.memory.placement import is_vision
from vllm_cluster.plan.memory.split import is_fused_experts, module_and_part, split_of

VOCAB_PADDING = 64  # vLLM layers/vocab_parallel_embedding.py DEFAULT_VOCAB_PADDING_SIZE


def rank_elements(model: ModelFacts, tensor: Tensor, tp: int) -> int:
    """Elements of one tensor on one of `tp` ranks."""
    split, _ = split_of(tensor)
    if split in ("vocab", "head"):
        return _vocab_elements(tensor, tp)
    if is_fused_experts(tensor):
        return _fused_expert_elements(model, tensor, tp, split)
    if tp == 1 or split == "whole":
        return tensor.elements
    if is_vision(tensor):
        return _vision_elements(tensor, tp, split)
    if split == "qkv":
        return _fused_qkv_elements(model, tensor, tp)
    return _divided_elements(tensor, min(tp, model.kv_heads) if split == "kv" else tp, split)


def _divided_elements(tensor: Tensor, ranks: int, split: str) -> int:
    side = _divided_side(tensor, split)
    if side is None:
        return tensor.elements
    return tensor.elements // tensor.shape[side] * ceil(tensor.shape[side] / ranks)


def _vision_elements(tensor: Tensor, tp: int, split: str) -> int:
    """An image encoder is divided like a decoder where its own heads allow it."""
    side = _divided_side(tensor, "row" if split == "row" else "column")
    if side is None or tensor.shape[side] % tp:
        return tensor.elements
    return tensor.elements // tp


def _divided_side(tensor: Tensor, split: str) -> int | None:
    """Which dimension is divided; None when the tensor is whole on every rank."""
    _, part = module_and_part(tensor.name)
    transposed = part in ("qweight", "qzeros", "scales")  # AWQ and GPTQ store [in, out]
    if not tensor.shape or tensor.shape == (1,):
        return None
    if split == "row":
        if part in ("bias", "") and len(tensor.shape) == 1:
            return None
        side = 0 if transposed or part in ("g_idx", "weight_g_idx") else 1
        # One group, or one scale a channel: nothing to divide along the input.
        return side if side < len(tensor.shape) and tensor.shape[side] > 1 else None
    if part in ("g_idx", "weight_g_idx"):
        return None
    return 1 if transposed and len(tensor.shape) > 1 else 0


def _vocab_elements(tensor: Tensor, tp: int) -> int:
    if not tensor.shape:
        return tensor.elements
    rows = ceil(tensor.shape[0] / VOCAB_PADDING) * VOCAB_PADDING
    return rows // tp * (tensor.elements // tensor.shape[0])


def _fused_qkv_elements(model: ModelFacts, tensor: Tensor, tp: int) -> int:
    """Queries divided by tp, keys and values by as many ranks as there are heads for."""
    heads = model.query_heads + 2 * model.kv_heads
    rank_heads = model.query_heads // tp + 2 * max(1, model.kv_heads // tp)
    _, part = module_and_part(tensor.name)
    if not tensor.shape or part == "g_idx":
        return tensor.elements
    return tensor.elements * rank_heads // heads


def _fused_expert_elements(model: ModelFacts, tensor: Tensor, tp: int, split: str) -> int:
    """gpt-oss: experts in one tensor, their sides rounded up as the MXFP4 kernels want.

    vLLM fused_moe/oracle/mxfp4.py (0.33.0): the intermediate side of a rank to
    a multiple of 128 and the hidden side to one of 256 with Marlin (compute
    capability below 9) and TRT-LLM (10), 64 and unrounded with Triton (9). The
    larger rounding is counted, so that the plan holds on all of them.
    """
    experts = model.experts
    count = tensor.shape[0]
    if experts is None or model.quantization is None or model.quantization.method != "mxfp4":
        return tensor.elements // tp if len(tensor.shape) > 2 else tensor.elements
    wide = _round_up(ceil(experts.intermediate / tp), 128)
    hidden = _round_up(model.hidden, 256)
    if tensor.name.endswith("_bias"):
        return count * (2 * wide if split == "column" else hidden)
    per_value = 2 if tensor.name.endswith("_blocks") else 32
    out, into = (2 * wide, hidden) if split == "column" else (hidden, wide)
    return count * out * into // per_value


def _round_up(value: int, multiple: int) -> int:
    return ceil(value / multiple) * multiple
