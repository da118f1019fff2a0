"""Weights on a rank, against sums made by hand."""

from __future__ import annotations

import pytest

from tests.unit.memory.models import made, public
from vllm_cluster.plan.memory.facts import Layout, LayoutError, ModelFacts, Serving, Tensor
from vllm_cluster.plan.memory.split import split_of
from vllm_cluster.plan.memory.weights import (
    check_split,
    rank_bytes,
    serving_dtype,
    stage_weights,
)


def loaded(model: ModelFacts, layout: Layout, **serving: str) -> list[int]:
    return [s.loaded_bytes for s in stage_weights(model, layout, Serving(**serving))]  # type: ignore[arg-type]


def test_one_rank_of_llama_70b_on_four_gpus() -> None:
    hidden, wide, layers, vocab, tp = 8192, 28672, 80, 128256, 4
    attention = hidden * (hidden + 2 * 1024) // tp + hidden * hidden // tp
    layer = attention + 3 * hidden * wide // tp + 2 * hidden
    by_hand = 2 * (layers * layer + 2 * vocab // tp * hidden + hidden)
    assert loaded(public("Llama-3.3-70B-Instruct"), Layout(tp)) == [by_hand]


def test_embedding_on_the_first_stage_head_and_norm_on_the_last() -> None:
    model = made()
    first, last = stage_weights(model, Layout(1, 2), Serving())
    vocabulary = 32000 * 1024 * 2
    assert (first.embedding_bytes, first.head_bytes) == (vocabulary, 0)
    assert (last.embedding_bytes, last.head_bytes) == (0, vocabulary)
    assert last.loaded_bytes - first.loaded_bytes == 1024 * 2  # the norm


def test_tied_embeddings_are_on_both_ends_and_once_on_one_gpu() -> None:
    model = made(tie_word_embeddings=True)
    vocabulary = 32000 * 1024 * 2
    (alone,) = stage_weights(model, Layout(1), Serving())
    stages = stage_weights(model, Layout(1, 3), Serving())
    assert alone.embedding_bytes == vocabulary
    assert [s.embedding_bytes for s in stages] == [vocabulary, 0, vocabulary]
    assert sum(s.loaded_bytes for s in stages) == alone.loaded_bytes + vocabulary


def test_models_that_do_not_ask_for_their_stage_have_the_vocabulary_everywhere() -> None:
    model = made(model_type="qwen3_moe", num_experts=8, num_experts_per_tok=2, head_dim=64,
                 moe_intermediate_size=512)  # fmt: skip
    stages = stage_weights(model, Layout(1, 3), Serving())
    assert {s.embedding_bytes for s in stages} == {32000 * 1024 * 2}
    assert {s.head_bytes for s in stages} == {32000 * 1024 * 2}


def test_the_vocabulary_is_padded_to_64_rows_and_then_divided() -> None:
    model = made(vocab_size=1000)
    (rank,) = stage_weights(model, Layout(2), Serving())
    assert rank.embedding_bytes == 1024 // 2 * 1024 * 2


def test_key_and_value_heads_repeat_when_there_are_fewer_than_ranks() -> None:
    model = made(num_key_value_heads=2)
    key = next(t for t in model.tensors if t.name.endswith("k_proj.weight"))
    whole = rank_bytes(model, key, 1, 1, "BF16")
    assert rank_bytes(model, key, 2, 1, "BF16") == whole // 2
    assert rank_bytes(model, key, 8, 1, "BF16") == whole // 2


def test_experts_are_sliced_by_tp_or_dealt_out_whole() -> None:
    model = public("Qwen3-30B-A3B")
    sliced = loaded(model, Layout(4))
    dealt = loaded(model, Layout(4, expert_parallel=True))
    assert sliced == dealt  # 128 experts over 4 ranks: the same bytes either way
    wider = loaded(model, Layout(4, data=2, expert_parallel=True))
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert dealt[0] - wider[0] == experts // 4 - experts // 8


def test_unquantised_weights_take_the_serving_dtype() -> None:
    model = made(torch_dtype="float32")
    assert serving_dtype(model, Serving()) == "BF16"
    assert loaded(model, Layout(1), dtype="float32")[0] == 2 * loaded(model, Layout(1))[0]
    assert loaded(model, Layout(1)) == loaded(made(), Layout(1))


def test_fp8_weights_and_their_scales_keep_their_width() -> None:
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = made(quantization_config=quantized, hidden_size=1024, intermediate_size=4096)
    (rank,) = stage_weights(model, Layout(2), Serving())
    linears = (1024 * 1024 * 2 + 2 * 256 * 1024 + 3 * 1024 * 4096) // 2
    scales = 4 * linears // (128 * 128)
    rest = 2 * (2 * 1024 * 10 + 1024) + 2 * 2 * 32000 // 2 * 1024
    assert rank.loaded_bytes == 10 * (linears + scales) + rest


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_four_bit_weights_split_along_the_stored_sides(method: str) -> None:
    config = {"quant_method": method, "bits": 4, "group_size": 128, "zero_point": True}
    model = made(quantization_config=config, torch_dtype="float16")
    one, two = loaded(model, Layout(1))[0], loaded(model, Layout(2))[0]
    norms = 2 * (2 * 1024 * 10 + 1024)
    whole = norms
    if method == "gptq":
        # The order of the inputs is whole where the outputs are divided.
        whole += 10 * 4 * (3 * 1024 + 2 * 1024)
    assert two - whole == (one - whole) // 2


def test_latent_attention_keeps_its_down_projections_whole_and_its_halves_beside() -> None:
    model = public("DeepSeek-V3")
    down = next(t for t in model.tensors if t.name.endswith("kv_a_proj_with_mqa.weight"))
    assert rank_bytes(model, down, 8, 1, "BF16") == down.stored_bytes
    (stage,) = stage_weights(model, Layout(8), Serving())
    assert stage.derived_bytes == 61 * (128 // 8) * (128 + 128) * 512 * 2


def test_draft_layers_are_not_loaded() -> None:
    model = public("DeepSeek-V3")
    drafts = sum(t.stored_bytes for t in model.tensors if t.layer == 61)
    (stage,) = stage_weights(model, Layout(1), Serving())
    assert drafts > 10e9
    assert stage.loaded_bytes == model.stored_bytes - drafts


def test_mxfp4_experts_are_rounded_up_as_the_kernels_want() -> None:
    model = public("gpt-oss-20b")
    (one,), (two,) = (stage_weights(model, Layout(n), Serving()) for n in (1, 2))
    # 2880 columns of a rank become 2944, halved 1440 become 1536.
    per_layer = 32 * 3 * 3072 * 17 / 32
    experts = 24 * per_layer * (2944 - 1536)
    assert one.loaded_bytes - two.loaded_bytes > experts
    assert one.loaded_bytes > model.stored_bytes


def test_a_tensor_that_no_rule_knows_is_counted_whole() -> None:
    model = made()
    odd = Tensor("model.layers.0.mystery.weight", (64, 64), "BF16", 1, 0)
    assert split_of(odd) == ("whole", False)
    assert rank_bytes(model, odd, 8, 1, "BF16") == 64 * 64 * 2


@pytest.mark.parametrize(
    ("changes", "layout", "words"),
    [
        ({}, Layout(3), "16 attention heads cannot be divided over TP=3"),
        ({"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 768,
          "intermediate_size": 3072}, Layout(6), "neither divide over TP=6"),
        ({"intermediate_size": 4100}, Layout(8), "width 4100 cannot be divided over TP=8"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
          "intermediate_size": 4096 + 128}, Layout(8), "not a multiple of the fp8 block of 128"),
    ],
)  # fmt: skip
def test_a_size_that_vllm_cannot_divide_is_refused(
    changes: dict[str, object], layout: Layout, words: str
) -> None:
    model = made(**changes)
    with pytest.raises(LayoutError, match=words):
        check_split(model, layout)
