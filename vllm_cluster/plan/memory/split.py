"""How vLLM divides every tensor of a checkpoint over a tensor-parallel group.

Sources, vLLM 0.32.0 and 0.33.0: model_executor/layers/linear.py
(ColumnParallelLinear splits the output, RowParallelLinear the input and keeps
its bias whole, QKVParallelLinear repeats key and value heads when there are
fewer of them than ranks, ReplicatedLinear splits nothing),
layers/vocab_parallel_embedding.py (rows padded to a multiple of 64),
layers/fused_moe (experts sliced like a dense layer, or whole experts dealt out).
A tensor that no rule knows is counted whole on every rank: never too small.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from vllm_cluster.plan.memory.facts import Tensor

Split = Literal["whole", "column", "row", "kv", "qkv", "heads", "vocab", "head", "skip"]

#: The module, that is the last part of the name before weight, bias, qweight …
_MODULES: dict[str, Split] = {
    # output divided
    **dict.fromkeys(
        (
            *("q_proj", "gate_proj", "up_proj", "gate_up_proj", "q_b_proj", "kv_b_proj"),
            *("w1", "w3", "fc1", "dense_h_to_4h", "c_fc"),
        ),
        "column",
    ),
    # input divided
    **dict.fromkeys(
        (
            *("o_proj", "down_proj", "w2", "fc2", "out_proj", "c_proj", "dense_4h_to_h"),
            *("attention.output.dense", "output.dense"),
        ),
        "row",
    ),
    **dict.fromkeys(("k_proj", "v_proj"), "kv"),
    **dict.fromkeys(("query", "key", "value", "intermediate.dense"), "column"),
    **dict.fromkeys(("qkv_proj", "Wqkv", "query_key_value", "c_attn"), "qkv"),
    **dict.fromkeys(("embed_tokens", "wte", "word_embeddings"), "vocab"),
    **dict.fromkeys(("lm_head", "embed_out"), "head"),
    # every rank has all of it
    **dict.fromkeys(
        (
            *("q_a_proj", "kv_a_proj_with_mqa", "gate", "router", "shared_expert_gate"),
            *(
                "q_a_layernorm",
                "kv_a_layernorm",
                "q_norm",
                "k_norm",
                "norm",
                "ln_f",
                "pooler.dense",
            ),
            *("position_embeddings", "token_type_embeddings", "LayerNorm"),
            *("attention.output.LayerNorm", "output.LayerNorm", "embeddings.LayerNorm"),
        ),
        "whole",
    ),
}
#: Tensors that vLLM does not load, or drops after loading.
_SKIPPED = re.compile(r"(rotary_emb\.inv_freq|\.weight_shape|masked_bias|attn\.bias)$")
_NORM = re.compile(r"(layernorm|layer_norm|norm\d*|ln_\d)$", re.IGNORECASE)
_PARTS = (
    *("weight", "bias", "qweight", "qzeros", "scales", "g_idx", "weight_scale_inv"),
    *("weight_scale", "weight_packed", "weight_zero_point", "weight_g_idx", "input_scale"),
    *("e_score_correction_bias", "weight_shape"),
)
_FUSED_EXPERTS = re.compile(r"experts\.(gate_up_proj|down_proj)(_blocks|_scales|_bias)?$")
#: Parts kept in 32 bits whatever the model is served in.
_KEEP_F32 = ("weight_scale_inv", "e_score_correction_bias", "input_scale")


@lru_cache(maxsize=4096)
def module_and_part(name: str) -> tuple[str, str]:
    """('model.layers.0.self_attn.q_proj', 'weight') of a tensor's name."""
    module, _, part = name.rpartition(".")
    if part in _PARTS:
        return module, part
    return name, ""


def split_of(tensor: Tensor) -> tuple[Split, bool]:
    """The split of a tensor and whether a rule knew it."""
    if _SKIPPED.search(tensor.name):
        return "skip", True
    if tensor.name.endswith("sinks"):
        return "heads", True
    fused = _FUSED_EXPERTS.search(tensor.name)
    if fused:
        return ("column" if fused[1] == "gate_up_proj" else "row"), True
    module, _ = module_and_part(tensor.name)
    words = module.split(".")
    for tail in (".".join(words[-3:]), ".".join(words[-2:]), words[-1]):
        if tail in _MODULES:
            return _MODULES[tail], True
    return "whole", bool(_NORM.search(module))


def is_expert(tensor: Tensor) -> bool:
    """Whether the tensor belongs to routed experts."""
    return ".experts." in tensor.name


def is_fused_experts(tensor: Tensor) -> bool:
    """Whether one tensor has all experts of a layer, their number being its first side."""
    return bool(_FUSED_EXPERTS.search(tensor.name)) and tensor.count == 1


def stays_f32(tensor: Tensor) -> bool:
    """Whether vLLM keeps the tensor in 32 bits (fp8 and int8 scales, the router's bias)."""
    _, part = module_and_part(tensor.name)
    return part in _KEEP_F32
