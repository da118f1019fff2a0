"""KV cache: bytes of a block, groups of layers, tokens, against numbers made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.memory.models import gpu, made, public
from vllm_cluster.plan.memory.facts import GIB, Layout, LayoutError, ModelFacts, Serving
from vllm_cluster.plan.memory.fit import Fit, fit
from vllm_cluster.plan.memory.kvgroups import bytes_per_block, group_layers
from vllm_cluster.plan.memory.kvspec import layer_specs


def weigh(model: ModelFacts, layout: Layout, kv_bytes: int, **serving: object) -> Fit:
    """A fit with so much memory for the KV cache on every rank, on GPUs that hold all else."""
    asked = replace(Serving(max_model_len=1024), **serving)  # type: ignore[arg-type]
    gpus = [gpu(4000)] * layout.gpus_per_replica
    return fit(model, layout, asked, gpus, kv_available_bytes=kv_bytes)


def test_grouped_query_attention_divides_its_heads() -> None:
    # 2 (key and value) x 4 heads x 64 wide x 2 bytes x 16 tokens x 10 layers
    assert weigh(made(), Layout(1), GIB).ranks[0].kv_bytes_per_block == 2 * 4 * 64 * 2 * 16 * 10
    assert weigh(made(), Layout(4), GIB).ranks[0].kv_bytes_per_block == 2 * 1 * 64 * 2 * 16 * 10


def test_heads_repeat_when_there_are_fewer_than_ranks() -> None:
    one_head = made(num_key_value_heads=1)
    assert {weigh(one_head, Layout(tp), GIB).kv_blocks for tp in (1, 2, 8)} == {
        GIB // (2 * 64 * 2 * 16 * 10)
    }


def test_a_latent_is_not_divided() -> None:
    model = public("DeepSeek-V3")
    blocks = {tp: weigh(model, Layout(tp), GIB).ranks[0].kv_bytes_per_block for tp in (1, 8)}
    assert blocks[1] == blocks[8] == (512 + 64) * 2 * 16 * 61


def test_the_smallest_rank_decides_and_all_make_as_many_blocks() -> None:
    model = made(num_hidden_layers=5)
    found = weigh(model, Layout(1, 2), GIB)
    per_layer = 2 * 4 * 64 * 2 * 16
    assert [r.kv_bytes_per_block for r in found.ranks] == [3 * per_layer, 2 * per_layer]
    assert found.kv_blocks == GIB // (3 * per_layer)
    assert [r.kv_used_bytes for r in found.ranks] == [
        found.kv_blocks * 3 * per_layer,
        found.kv_blocks * 2 * per_layer,
    ]


def test_tokens_are_concurrency_times_length_as_vllm_logs_them() -> None:
    found = weigh(made(), Layout(1), 100 * 2 * 4 * 64 * 2 * 16 * 10, max_model_len=1000)
    # 100 blocks; a request of 1000 tokens takes 63 of them, the last one not full.
    assert found.blocks_per_request == 63
    assert found.concurrency == pytest.approx(100 / 63)
    assert found.kv_tokens == int(100 / 63 * 1000)


def test_an_eight_bit_cache_holds_twice_as_much() -> None:
    plain, small = (weigh(made(), Layout(1), GIB, kv_cache_dtype=d) for d in ("auto", "fp8"))
    assert small.ranks[0].kv_bytes_per_block * 2 == plain.ranks[0].kv_bytes_per_block
    assert small.kv_blocks in (2 * plain.kv_blocks, 2 * plain.kv_blocks + 1)


def test_a_cache_dtype_with_scales_of_its_own_is_not_guessed() -> None:
    with pytest.raises(LayoutError, match="packs scales beside its values"):
        weigh(made(), Layout(1), GIB, kv_cache_dtype="nvfp4")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gemma-2-9b-it", [21, 21]),  # every second layer has a window
        ("gpt-oss-20b", [12, 12]),
    ],
)
def test_sliding_and_full_layers_make_groups_of_equal_size(name: str, sizes: list[int]) -> None:
    model = public(name)
    groups = group_layers(layer_specs(model, Layout(1), Serving(), gpu(80)))
    assert [len(g.layers) for g in groups] == sizes
    # The groups share one pool, so a block costs the layers of one group, not of all.
    token = 2 * model.kv_heads * model.head_dim * 2
    assert bytes_per_block(groups, 0, model.layers) == 16 * token * sizes[0]


def test_five_sliding_layers_to_a_full_one_make_six_groups() -> None:
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 4
    model = made(num_hidden_layers=24, layer_types=kinds, sliding_window=512)
    groups = group_layers(layer_specs(model, Layout(1), Serving(), gpu(80)))
    assert sorted(len(g.layers) for g in groups) == [4] * 6
    dealt = next(g for g in groups if g.specs[0].kind == "sliding")
    assert dealt.layers == (0, 6, 12, 18)  # in turn, so that each stage has some


def test_close_counts_are_padded_to_the_larger() -> None:
    kinds = ["sliding_attention", "full_attention"] * 6 + ["full_attention"]
    model = made(num_hidden_layers=13, layer_types=kinds, sliding_window=512)
    groups = group_layers(layer_specs(model, Layout(1), Serving(), gpu(80)))
    assert sorted(len(g.layers) for g in groups) == [6, 7]
    assert bytes_per_block(groups, 0, 13) == 7 * 16 * 2 * 4 * 64 * 2


def test_a_window_keeps_itself_what_is_in_flight_and_a_block() -> None:
    kinds = ["sliding_attention", "full_attention"] * 5
    model = made(layer_types=kinds, sliding_window=512)
    found = weigh(
        model, Layout(1), GIB, max_model_len=8192, max_num_batched_tokens=1024, max_num_seqs=8
    )
    # Full: 8192 / 16. Window: 511 and two batches of 1024, rounded up, and one block.
    assert found.blocks_per_request == 512 + (511 + 2048 + 15) // 16 + 1
    synchronous = weigh(
        model, Layout(1), GIB, max_model_len=8192, max_num_batched_tokens=1024, max_num_seqs=8,
        async_scheduling=False,
    )  # fmt: skip
    assert synchronous.blocks_per_request == 512 + (511 + 1024 + 15) // 16 + 1


def test_without_the_hybrid_manager_windows_cost_like_full_attention() -> None:
    kinds = ["sliding_attention", "full_attention"] * 5
    model = made(layer_types=kinds, sliding_window=512)
    plain = weigh(model, Layout(1), GIB, disable_hybrid_kv_cache_manager=True)
    assert plain.kv_blocks == weigh(made(), Layout(1), GIB).kv_blocks
    assert plain.blocks_per_request == 64


def test_a_model_with_one_window_everywhere_has_one_group() -> None:
    model = made(sliding_window=256)
    groups = group_layers(layer_specs(model, Layout(1), Serving(), gpu(80)))
    assert [len(g.layers) for g in groups] == [10]
    assert {s.kind for s in groups[0].specs} == {"sliding"}


def test_blackwell_takes_blocks_of_32_for_a_latent() -> None:
    model = public("DeepSeek-V3")
    for capability, tokens in (((9, 0), 16), ((10, 0), 32)):
        specs = layer_specs(model, Layout(8), Serving(), gpu(180, capability=capability))
        assert specs[0].block_tokens == tokens


@pytest.mark.parametrize("asked", [None, 64])
def test_a_processor_without_amx_tiles_takes_blocks_of_16_for_a_latent_and_no_other(
    asked: int | None,
) -> None:
    model = public("DeepSeek-V3")
    for amx, tokens in ((False, 16), (True, asked or 128)):
        serving = Serving(platform="cpu", block_size=asked, amx_tiles=amx)
        specs = layer_specs(model, Layout(8), serving, None)
        assert specs[0].block_tokens == tokens


def test_an_encoder_keeps_no_cache() -> None:
    found = weigh(public("bge-large-en-v1.5"), Layout(1), GIB, max_model_len=512)
    assert (found.blocks_per_request, found.kv_blocks, found.kv_tokens) == (0, 0, 0)
    assert found.fits
