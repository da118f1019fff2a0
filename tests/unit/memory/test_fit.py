"""What fits, what does not, and how that is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.memory.models import gpu, made, public
from vllm_cluster.plan.memory.allowance import batch_limits
from vllm_cluster.plan.memory.facts import GIB, Layout, LayoutError, Serving
from vllm_cluster.plan.memory.fit import fit
from vllm_cluster.plan.memory.gpus import gpu_by_name, gpu_from_nvidia_smi, known_gpus
from vllm_cluster.plan.memory.search import fewest_hosts, longest_context, valid_tensor_sizes

SERVING = Serving(max_model_len=8192, gpu_memory_utilization=0.9)


def test_seventy_billion_parameters_do_not_fit_one_gpu_and_the_reason_has_numbers() -> None:
    found = fit(public("Llama-3.3-70B-Instruct"), Layout(1), SERVING, [gpu_by_name("A100")])
    assert not found.fits
    assert found.problems[0].startswith("rank 0: weights of 131.4 GiB and an allowance of ")
    assert "more than the 71.2 GiB that vLLM may use of A100-80GB" in found.problems[0]


def test_they_fit_four_and_the_parts_add_up() -> None:
    card = gpu_by_name("A100")
    found = fit(public("Llama-3.3-70B-Instruct"), Layout(4), SERVING, [card] * 4)
    assert found.fits
    for rank in found.ranks:
        used = rank.weights.total_bytes + rank.allowance.inside_bytes + rank.kv_used_bytes
        assert used <= rank.requested_bytes
        assert rank.requested_bytes - used < rank.kv_bytes_per_block
        assert rank.requested_bytes + rank.allowance.outside_bytes <= card.memory_bytes


def test_a_utilization_that_leaves_no_room_for_the_context_is_refused() -> None:
    asked = replace(SERVING, gpu_memory_utilization=0.995)
    found = fit(made(), Layout(1), asked, [gpu(24)])
    assert "the CUDA context and NCCL take" in found.problems[0]


def test_one_request_must_fit_and_one_block_stays_with_vllm() -> None:
    block = 2 * 4 * 64 * 2 * 16 * 10
    asked = replace(SERVING, max_model_len=1600)
    for blocks, fits in ((100, False), (101, True)):
        found = fit(made(), Layout(1), asked, [gpu(24)], kv_available_bytes=blocks * block)
        assert found.fits is fits
    assert found.blocks_per_request == 100


def test_more_requests_than_fit_are_refused_with_how_many_do() -> None:
    block = 2 * 4 * 64 * 2 * 16 * 10
    asked = replace(SERVING, max_model_len=1600, full_requests=3)
    found = fit(made(), Layout(1), asked, [gpu(24)], kv_available_bytes=250 * block)
    assert found.problems == (
        "3 requests of 1600 tokens need 300 KV cache blocks, the smallest rank has 250: enough "
        "for 2.50",
    )


def test_a_fixed_cache_must_fit_beside_the_rest() -> None:
    asked = replace(SERVING, kv_cache_memory_bytes=23 * GIB)
    found = fit(made(), Layout(1), asked, [gpu(24)])
    assert "23.0 GiB of KV cache are asked for beside" in found.problems[0]


def test_the_gpus_must_be_as_many_as_the_ranks() -> None:
    with pytest.raises(LayoutError, match="needs 8 GPUs, 4 given"):
        fit(made(), Layout(4, 2), SERVING, [gpu(24)] * 4)


def test_a_smaller_gpu_among_larger_ones_decides() -> None:
    mixed = fit(made(), Layout(2), SERVING, [gpu(80), gpu(24)])
    small = fit(made(), Layout(2), SERVING, [gpu(24), gpu(24)])
    assert mixed.kv_blocks == small.kv_blocks


@pytest.mark.parametrize(
    ("name", "tokens", "requests"),
    [("A100", 2048, 256), ("H100", 8192, 1024), ("L4", 2048, 256), ("B200", 16384, 1024)],
)
def test_batch_limits_are_those_of_vllm_for_the_gpu(name: str, tokens: int, requests: int) -> None:
    limits = batch_limits(Serving(), gpu_by_name(name), Layout(1), 8192)
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (tokens, requests)


def test_the_longest_context_fits_and_one_block_more_does_not() -> None:
    model, cards = public("Llama-3.3-70B-Instruct"), [gpu_by_name("A100")] * 2
    asked = Serving(gpu_memory_utilization=0.9)
    length = longest_context(model, Layout(2), asked, cards)
    assert 0 < length < model.default_max_model_len
    assert fit(model, Layout(2), replace(asked, max_model_len=length), cards).fits
    assert not fit(model, Layout(2), replace(asked, max_model_len=length + 16), cards).fits


def test_the_fewest_hosts_fit_and_one_less_does_not() -> None:
    model, card = public("DeepSeek-V3"), gpu_by_name("H100")
    layout = fewest_hosts(model, SERVING, card, 8)
    assert layout == Layout(8, 2)
    assert not fit(model, Layout(8, 1), SERVING, [card] * 8).fits


def test_tensor_sizes_are_those_that_divide_the_heads() -> None:
    assert valid_tensor_sizes(public("Llama-3.3-70B-Instruct"), 8) == [1, 2, 4, 8]
    assert valid_tensor_sizes(public("phi-4"), 8) == [1, 2]  # 40 heads, 10 for keys and values


def test_gpus_are_found_by_what_nvidia_smi_prints() -> None:
    assert gpu_by_name("NVIDIA A100-SXM4-80GB").name == "A100-80GB"
    assert gpu_by_name("NVIDIA H100 80GB HBM3").name == "H100-80GB"
    assert gpu_by_name("NVIDIA GeForce RTX 4090").name == "RTX-4090"
    assert gpu_by_name("Tesla V100-SXM2-32GB").name == "V100-32GB"
    with pytest.raises(KeyError, match="known: T4"):
        gpu_by_name("Voodoo 2")
    assert {gpu_by_name(name).name for name in known_gpus()} == set(known_gpus())


def test_the_memory_that_nvidia_smi_prints_is_not_all_there_for_cuda() -> None:
    card = gpu_from_nvidia_smi("NVIDIA A100-SXM4-80GB", 81920, (8, 0))
    assert card.memory_bytes == gpu_by_name("A100").memory_bytes < 81920 * 1024**2
    unknown = gpu_from_nvidia_smi("NVIDIA Future-1", 100_000, (13, 0))
    assert 0.98 < unknown.memory_bytes / (100_000 * 1024**2) < 1
