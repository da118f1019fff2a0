"""The tensors of a checkpoint, made from its config.json.

Used when only the config and the index are at hand: the index names tensors
but gives no shapes. What is made here is checked against the index's
total_size (see docs/memory.md: equal to the byte for the public models). Where
safetensors headers can be read, they are used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from vllm_cluster.plan.memory.facts import ModelFacts, Tensor, UnsupportedModelError
from vllm_cluster.plan.memory.synthesis_quant import store_linear

Config = Mapping[str, Any]
#: name, shape, dtype, count: a tensor of one layer before it is given its place.
Part = tuple[str, tuple[int, ...], str, int]


def synthesize(facts: ModelFacts, config: Config) -> ModelFacts:
    """`facts` with the tensors that a checkpoint of this config.json has.

    Raises UnsupportedModelError for a model type whose tensors are not known.
    """
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    family = _FAMILIES.get(facts.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"the tensors of model type {facts.model_type!r} are not known here; give a directory "
            f"with its safetensors files, or use one of: {', '.join(sorted(_FAMILIES))}"
        )
    prefix = "language_model." if text is not config else ""
    tensors: Iterable[Tensor] = family(facts, text)
    if prefix:
        tensors = [replace(t, name=prefix + t.name) for t in tensors]
    return replace(facts, tensors=tuple(tensors), tensors_from="config")


def _decoder(facts: ModelFacts, text: Config) -> Iterator[Tensor]:
    """Decoders of the Llama kind, dense or with experts."""
    dtype = facts.dtype
    # Embedding models of decoder kind are saved without the language-model wrapper.
    base = "" if facts.runner == "pooling" else "model."
    yield Tensor(f"{base}embed_tokens.weight", (facts.vocab, facts.hidden), dtype)
    sparse = facts.experts.layers if facts.experts is not None else ()
    # All layers with experts are alike, and so are all others.
    kinds = {layer in sparse for layer in range(facts.layers)}
    parts = {kind: tuple(_layer(facts, text, experts=kind)) for kind in kinds}
    for layer in range(facts.layers):
        at = f"{base}layers.{layer}."
        for name, shape, kind, count in parts[layer in sparse]:
            yield Tensor(at + name, shape, kind, count, layer)
    yield Tensor(f"{base}norm.weight", (facts.hidden,), dtype)
    if not facts.tied_embeddings and facts.runner == "generate":
        yield Tensor("lm_head.weight", (facts.vocab, facts.hidden), dtype)
    yield from _draft_layers(facts, text)


def _layer(facts: ModelFacts, text: Config, *, experts: bool) -> Iterator[Part]:
    yield from _norms(facts)
    if facts.mla is not None:
        yield from _mla_attention(facts)
    else:
        yield from _attention(facts, text)
    if experts:
        yield from _expert_layer(facts)
    else:
        yield from _dense_mlp(facts, text, "mlp.", facts.intermediate)


def _norms(facts: ModelFacts) -> Iterator[Part]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if facts.model_type in ("gemma2", "gemma3_text"):
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in names:
        yield f"{name}.weight", (facts.hidden,), facts.dtype, 1
    if facts.model_type in ("qwen3", "qwen3_moe", "gemma3_text"):
        for name in ("q_norm", "k_norm"):
            yield f"self_attn.{name}.weight", (facts.head_dim,), facts.dtype, 1


def _attention(facts: ModelFacts, text: Config) -> Iterator[Part]:
    query = facts.query_heads * facts.head_dim
    kv = facts.kv_heads * facts.head_dim
    at = "self_attn."
    if facts.model_type == "phi3":
        yield from _linear(facts, f"{at}qkv_proj", query + 2 * kv, facts.hidden)
    else:
        bias = facts.model_type == "qwen2" or bool(text.get("attention_bias"))
        for name, out in (("q_proj", query), ("k_proj", kv), ("v_proj", kv)):
            yield from _linear(facts, at + name, out, facts.hidden, bias=bias)
    bias = facts.model_type != "qwen2" and bool(text.get("attention_bias"))
    yield from _linear(facts, f"{at}o_proj", facts.hidden, query, bias=bias)
    if facts.model_type == "gpt_oss":
        yield f"{at}sinks", (facts.query_heads,), facts.dtype, 1


def _mla_attention(facts: ModelFacts) -> Iterator[Part]:
    mla, heads, at = facts.mla, facts.query_heads, "self_attn."
    assert mla is not None  # noqa: S101 - the caller has looked
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank is None:
        yield from _linear(facts, f"{at}q_proj", query, facts.hidden)
    else:
        yield from _linear(facts, f"{at}q_a_proj", mla.q_lora_rank, facts.hidden)
        yield f"{at}q_a_layernorm.weight", (mla.q_lora_rank,), facts.dtype, 1
        yield from _linear(facts, f"{at}q_b_proj", query, mla.q_lora_rank)
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    yield from _linear(facts, f"{at}kv_a_proj_with_mqa", latent, facts.hidden)
    yield f"{at}kv_a_layernorm.weight", (mla.kv_lora_rank,), facts.dtype, 1
    wide = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield from _linear(facts, f"{at}kv_b_proj", wide, mla.kv_lora_rank)
    yield from _linear(facts, f"{at}o_proj", facts.hidden, heads * mla.v_head_dim)


def _dense_mlp(
    facts: ModelFacts, text: Config, at: str, wide: int, count: int = 1
) -> Iterator[Part]:
    bias = bool(text.get("mlp_bias"))
    if facts.model_type == "phi3":
        yield from _linear(facts, f"{at}gate_up_proj", 2 * wide, facts.hidden)
    else:
        for name in ("gate_proj", "up_proj"):
            yield from _linear(facts, at + name, wide, facts.hidden, bias=bias, count=count)
    yield from _linear(facts, f"{at}down_proj", facts.hidden, wide, bias=bias, count=count)


def _expert_layer(facts: ModelFacts) -> Iterator[Part]:
    experts = facts.experts
    assert experts is not None  # noqa: S101 - the caller has looked
    count, wide, hidden = experts.count, experts.intermediate, facts.hidden
    if facts.model_type == "mixtral":
        at = "block_sparse_moe."
        yield f"{at}gate.weight", (count, hidden), facts.dtype, 1
        for name, out, into in (("w1", wide, hidden), ("w2", hidden, wide), ("w3", wide, hidden)):
            yield from _linear(facts, f"{at}experts.*.{name}", out, into, count=count)
        return
    if facts.model_type == "gpt_oss":
        yield from _gpt_oss_experts(facts)
        return
    yield "mlp.gate.weight", (count, hidden), facts.dtype, 1
    if facts.model_type == "deepseek_v3":
        yield "mlp.gate.e_score_correction_bias", (count,), "F32", 1
    yield from _dense_mlp(facts, {}, "mlp.experts.*.", wide, count)
    if experts.shared_intermediate:
        yield from _dense_mlp(facts, {}, "mlp.shared_experts.", experts.shared_intermediate)


def _gpt_oss_experts(facts: ModelFacts) -> Iterator[Part]:
    """All experts of a layer in one tensor, in MXFP4: 16 bytes and a scale per 32 values."""
    experts, hidden = facts.experts, facts.hidden
    assert experts is not None  # noqa: S101 - the caller has looked
    count, wide, at = experts.count, experts.intermediate, "mlp.experts."
    yield "mlp.router.weight", (count, hidden), facts.dtype, 1
    yield "mlp.router.bias", (count,), facts.dtype, 1
    for name, out, into in (("gate_up_proj", 2 * wide, hidden), ("down_proj", hidden, wide)):
        if facts.quantization is None:
            yield f"{at}{name}", (count, into, out), facts.dtype, 1
        else:
            yield f"{at}{name}_blocks", (count, out, into // 32, 16), "U8", 1
            yield f"{at}{name}_scales", (count, out, into // 32), "U8", 1
        yield f"{at}{name}_bias", (count, out), facts.dtype, 1


def _draft_layers(facts: ModelFacts, text: Config) -> Iterator[Tensor]:
    """DeepSeek's multi-token-prediction layers: in the file, loaded only for drafting."""
    if facts.model_type != "deepseek_v3":
        return
    hidden, dtype = facts.hidden, facts.dtype
    for layer in range(facts.layers, facts.layers + int(text.get("num_nextn_predict_layers") or 0)):
        at = f"model.layers.{layer}."
        yield Tensor(f"{at}embed_tokens.weight", (facts.vocab, hidden), dtype, 1, layer)
        yield Tensor(f"{at}shared_head.head.weight", (facts.vocab, hidden), dtype, 1, layer)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield Tensor(f"{at}{name}.weight", (hidden,), dtype, 1, layer)
        yield Tensor(f"{at}eh_proj.weight", (hidden, 2 * hidden), dtype, 1, layer)
        for part in (_norms, _mla_attention, _expert_layer):
            for name, shape, kind, count in part(facts):
                yield Tensor(at + name, shape, kind, count, layer)


def _encoder(facts: ModelFacts, text: Config) -> Iterator[Tensor]:
    """BERT and RoBERTa encoders."""
    hidden, dtype, wide = facts.hidden, facts.dtype, facts.intermediate
    at = "embeddings."
    yield Tensor(f"{at}word_embeddings.weight", (facts.vocab, hidden), dtype)
    yield Tensor(f"{at}position_embeddings.weight", (facts.max_positions, hidden), dtype)
    kinds = int(text.get("type_vocab_size") or 1)
    yield Tensor(f"{at}token_type_embeddings.weight", (kinds, hidden), dtype)
    for part in ("weight", "bias"):
        yield Tensor(f"{at}LayerNorm.{part}", (hidden,), dtype)
    linears = [(f"attention.self.{name}", hidden, hidden) for name in ("query", "key", "value")]
    linears += [
        ("attention.output.dense", hidden, hidden),
        ("intermediate.dense", wide, hidden),
        ("output.dense", hidden, wide),
    ]
    for layer in range(facts.layers):
        at = f"encoder.layer.{layer}."
        for name, out, into in linears:
            yield Tensor(f"{at}{name}.weight", (out, into), dtype, 1, layer)
            yield Tensor(f"{at}{name}.bias", (out,), dtype, 1, layer)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            for part in ("weight", "bias"):
                yield Tensor(f"{at}{name}.{part}", (hidden,), dtype, 1, layer)
    if text.get("add_pooling_layer", True):
        yield Tensor("pooler.dense.weight", (hidden, hidden), dtype)
        yield Tensor("pooler.dense.bias", (hidden,), dtype)


def _linear(
    facts: ModelFacts, name: str, out: int, into: int, *, bias: bool = False, count: int = 1
) -> Iterator[Part]:
    for part, shape, dtype in store_linear(facts.quantization, facts.dtype, name, out, into):
        yield f"{name}.{part}", shape, dtype, count
    if bias:
        yield f"{name}.bias", (out,), facts.dtype, count


_FAMILIES: dict[str, Callable[[ModelFacts, Config], Iterator[Tensor]]] = {
    **dict.fromkeys(
        (
            *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"),
            *("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "deepseek_v2", "kimi_k2"),
        ),
        _decoder,
    ),
    **dict.fromkeys(("bert", "xlm-roberta"), _encoder),
}
