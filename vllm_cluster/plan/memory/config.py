"""A model's facts out of its config.json.

Only the keys that decide memory are read. Defaults are those of the model's
own configuration class in Transformers, which fills them in when the file
leaves them out (Gemma 3 leaves out half of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_cluster.plan.memory.facts import (
    DTYPE_NAMES,
    Attention,
    AttentionKind,
    Experts,
    Mla,
    ModelFacts,
    Runner,
    UnsupportedModelError,
)
from vllm_cluster.plan.memory.quantization import read_quantization

Config = Mapping[str, Any]

#: What a file leaves out, by model type. tie_word_embeddings is False unless named:
#: the base class of Transformers says True, every decoder below says what stands here.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"tie_word_embeddings": True, "head_dim": 256},
    "gemma2": {"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
    "gpt_oss": {"sliding_window": 128, "head_dim": 64},
    "mixtral": {"num_key_value_heads": 8},
    "mistral": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "deepseek_v3": {"num_nextn_predict_layers": 0, "moe_layer_freq": 1},
    "deepseek_v2": {"moe_layer_freq": 1, "first_k_dense_replace": 0, "n_shared_experts": 0},
    "bert": {"tie_word_embeddings": True},
    "xlm-roberta": {"tie_word_embeddings": True},
}

#: vLLM config/model.py and transformers_utils/model_arch_config_convertor.py
#: `is_deepseek_mla` (0.32.0): the types whose latent cache this plan knows.
_MLA_TYPES = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
#: Sparse or otherwise different caches: named so that nobody gets a wrong number.
_UNKNOWN_CACHE = frozenset({"deepseek_v32", "deepseek_v4", "deepseek_v41", "glm_moe_dsa"})
#: Keys of configurations whose layers cache different or shared things.
_UNKNOWN_KEYS = (
    *("num_kv_shared_layers", "global_head_dim", "block_configs", "cross_attention_layers"),
    *("compress_ratios", "index_topk", "is_encoder_decoder", "mamba_d_state", "ssm_cfg"),
    *("linear_num_key_heads", "per_layer_config"),
)
_POOLING_TYPES = frozenset({"bert", "xlm-roberta", "roberta", "modernbert", "nomic_bert"})
#: Position scalings that do not lengthen the context (vLLM config/model.py,
#: `_get_and_verify_max_len`).
_ROPE_KEEPS_LENGTH = frozenset({"su", "longrope", "llama3", "default", "mrope", "proportional"})


def read_config(config: Config, *, name: str = "", runner: Runner | None = None) -> ModelFacts:
    """The facts in a config.json, without tensors.

    Raises UnsupportedModelError for models whose KV cache has a shape that is
    not known here (state-space and linear attention, sparse latent caches),
    and for files that lack what every decoder has.
    """
    text = _text_config(config)
    model_type = str(text.get("model_type", config.get("model_type", "")))
    if model_type in _UNKNOWN_CACHE:
        raise UnsupportedModelError(
            f"{model_type} caches more than keys, values or one latent; its memory is not known "
            "here. Start vLLM once and read 'GPU KV cache size' in its log"
        )
    odd = [key for key in _UNKNOWN_KEYS if text.get(key) or config.get(key)]
    if odd:
        raise UnsupportedModelError(
            f"{model_type} sets {', '.join(odd)}: its layers do not all cache keys and values "
            "alike, and how is not known here"
        )
    layers = _number(text, "num_hidden_layers", "n_layer")
    hidden = _number(text, "hidden_size", "n_embd")
    heads = _number(text, "num_attention_heads", "n_head")
    kv_keys = ("n_head_kv", "num_kv_heads", "num_key_value_heads")
    kv_heads = _number(text, *kv_keys) if _first(text, *kv_keys) else heads
    head_dim = text.get("head_dim") or hidden // heads
    mla = _mla(text, model_type)
    architecture = str((config.get("architectures") or text.get("architectures") or [""])[0])
    max_positions = int(_first(text, "max_position_embeddings", "n_positions") or 0)
    return ModelFacts(
        name=name or str(config.get("_name_or_path") or model_type),
        model_type=model_type,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        vocab=_number(text, "vocab_size"),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=int(head_dim),
        intermediate=int(_first(text, "intermediate_size", "ffn_hidden_size") or 4 * hidden),
        attention=_attention(text, model_type, layers, (kv_heads, int(head_dim)), mla),
        tied_embeddings=_tied(config, text),
        dtype=_dtype(config, text) or ("F32" if model_type in _POOLING_TYPES else "BF16"),
        max_positions=max_positions,
        default_max_model_len=_default_length(text, max_positions),
        runner=runner or _runner(model_type, architecture),
        mla=mla,
        experts=_experts(text, layers),
        quantization=read_quantization(config, text),
    )


def _text_config(config: Config) -> dict[str, Any]:
    """The language part of the file with the class's defaults filled in."""
    inner = config.get("text_config")
    text: dict[str, Any] = dict(inner) if isinstance(inner, Mapping) else dict(config)
    model_type = str(text.get("model_type", ""))
    if not model_type and inner is not None:
        model_type = f"{config.get('model_type', '')}_text"
    for key, value in _DEFAULTS.get(model_type, {}).items():
        if text.get(key) is None:
            text[key] = value
    return text


def _number(text: Config, *keys: str) -> int:
    value = _first(text, *keys)
    if value is None:
        raise UnsupportedModelError(f"config.json has no {' or '.join(keys)}")
    if isinstance(value, (list, dict)):
        raise UnsupportedModelError(f"{keys[0]} differs from layer to layer; not known here")
    return int(value)


def _first(text: Config, *keys: str) -> Any:
    return next((text[key] for key in keys if text.get(key) is not None), None)


def _tied(config: Config, text: Config) -> bool:
    own = _first(text, "tie_word_embeddings")
    return bool(config.get("tie_word_embeddings") if own is None else own)


def names_dtype(config: Config) -> bool:
    """Whether a config.json says in which dtype the model is."""
    return _dtype(config, _text_config(config)) is not None


def _dtype(config: Config, text: Config) -> str | None:
    named = _first(config, "dtype", "torch_dtype") or _first(text, "dtype", "torch_dtype")
    return DTYPE_NAMES.get(str(named).removeprefix("torch."))


def _runner(model_type: str, architecture: str) -> Runner:
    """vLLM serves an architecture that does not end in a language-model head by pooling."""
    if model_type in _POOLING_TYPES or architecture.endswith(("Model", "SequenceClassification")):
        return "pooling"
    return "generate"


def _mla(text: Config, model_type: str) -> Mla | None:
    if model_type not in _MLA_TYPES or not text.get("kv_lora_rank"):
        return None
    rank = text.get("q_lora_rank")
    return Mla(
        q_lora_rank=int(rank) if rank else None,
        kv_lora_rank=int(text["kv_lora_rank"]),
        qk_nope_head_dim=int(text["qk_nope_head_dim"]),
        qk_rope_head_dim=int(text["qk_rope_head_dim"]),
        v_head_dim=int(text["v_head_dim"]),
    )


def _attention(
    text: Config, model_type: str, layers: int, heads: tuple[int, int], mla: Mla | None
) -> tuple[Attention, ...]:
    """The attention of every layer; `heads` are the key-value heads and their width."""
    if mla is not None:
        latent = mla.kv_lora_rank + mla.qk_rope_head_dim
        return (Attention("mla", 1, latent, 0),) * layers
    kv_heads, head_dim = heads
    window = text.get("sliding_window") or None
    full = Attention("full", kv_heads, head_dim, head_dim)
    kinds = _layer_kinds(text, model_type, layers, window)
    made: dict[AttentionKind, Attention] = {"full": full}
    if "sliding" in kinds and window is not None:
        made["sliding"] = Attention("sliding", kv_heads, head_dim, head_dim, int(window))
    if "chunked" in kinds:
        chunk = _number(text, "attention_chunk_size")
        made["chunked"] = Attention("chunked", kv_heads, head_dim, head_dim, chunk)
    return tuple(made[kind] for kind in kinds)


_LAYER_TYPES: dict[str, AttentionKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
}


def _layer_kinds(
    text: Config, model_type: str, layers: int, window: int | None
) -> list[AttentionKind]:
    named = text.get("layer_types")
    if named:
        unknown = sorted(set(named) - set(_LAYER_TYPES))
        if unknown:
            raise UnsupportedModelError(
                f"layers of type {', '.join(unknown)} keep a state that is not known here"
            )
        if len(named) != layers:
            raise UnsupportedModelError(
                f"config.json names {len(named)} layer_types for {layers} layers"
            )
        return [_LAYER_TYPES[name] for name in named]
    if not window or text.get("use_sliding_window") is False:
        return ["full"] * layers
    return ["sliding" if slides else "full" for slides in _windows(text, model_type, layers)]


def _windows(text: Config, model_type: str, layers: int) -> list[bool]:
    """Which layers have a window, for models that do not list their layer_types.

    The patterns are those of the configuration classes: every second layer of
    Gemma 2 and gpt-oss, all but every sixth of Gemma 3, the upper layers of
    Qwen 2 when it is told to use windows, all layers of anybody else.
    """
    if model_type in ("gemma2", "gpt_oss"):
        return [index % 2 == 0 for index in range(layers)]
    if model_type in ("gemma3_text", "gemma3"):
        every = int(text.get("sliding_window_pattern") or 6)
        return [(index + 1) % every != 0 for index in range(layers)]
    first = int(text.get("max_window_layers") or 0) if text.get("use_sliding_window") else 0
    return [index >= first for index in range(layers)]


def _experts(text: Config, layers: int) -> Experts | None:
    count = _first(text, "num_experts", "n_routed_experts", "num_local_experts")
    if not count or int(count) < 2:
        return None
    intermediate = int(_first(text, "moe_intermediate_size", "intermediate_size"))
    shared = int(text.get("n_shared_experts") or 0) * intermediate
    shared = int(text.get("shared_expert_intermediate_size") or shared)
    dense_first = int(text.get("first_k_dense_replace") or 0)
    step = int(text.get("decoder_sparse_step") or 1)
    dense_only = set(text.get("mlp_only_layers") or [])
    with_experts = frozenset(
        index
        for index in range(layers)
        if index >= dense_first and (index + 1) % step == 0 and index not in dense_only
    )
    return Experts(
        count=int(count),
        per_token=int(_first(text, "num_experts_per_tok", "num_experts_per_token") or 1),
        intermediate=intermediate,
        shared_intermediate=shared,
        layers=with_experts,
    )


def _default_length(text: Config, max_positions: int) -> int:
    """max_model_len when nobody gives one (vLLM config/model.py `_get_and_verify_max_len`)."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind in _ROPE_KEEPS_LENGTH or "gemma3" in str(text.get("model_type")):
        if kind == "longrope":
            return int(text.get("original_max_position_embeddings") or max_positions)
        return max_positions
    if kind == "yarn":
        max_positions = int(rope.get("original_max_position_embeddings") or max_positions)
    return int(max_positions * float(rope.get("factor") or 1.0))
