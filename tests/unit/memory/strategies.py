"""Random models, machines and questions for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from vllm_cluster.plan.decision import Ask
from vllm_cluster.plan.memory.config import read_config
from vllm_cluster.plan.memory.facts import GIB, GpuFacts, HostFacts, Layout, ModelFacts, Serving
from vllm_cluster.plan.memory.synthesis import synthesize

_QUANTIZATIONS: list[dict[str, Any] | None] = [
    None,
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "fp8"},
    {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 128}}},
        "ignore": ["lm_head"],
    },
]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A config.json of some decoder: sizes, heads, windows, experts, latents, quantisation."""
    kind = draw(
        st.sampled_from(
            ["llama", "qwen2", "qwen3", "gemma2", "mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"]
        )
    )
    heads = draw(st.sampled_from([1, 2, 4, 7, 8, 12, 14, 16, 28, 32, 64, 128]))
    kv_heads = draw(st.sampled_from([n for n in (1, 2, 4, 7, 8, 16, heads) if heads % n == 0]))
    layers = draw(st.integers(1, 100))
    config: dict[str, Any] = {
        "architectures": ["SomeForCausalLM"],
        "model_type": kind,
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "hidden_size": 128 * draw(st.integers(1, 128)),
        "intermediate_size": 128 * draw(st.integers(1, 256)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([64, 80, 128, 256])),
        "num_hidden_layers": layers,
        "vocab_size": draw(st.integers(100, 300_000)),
        "max_position_embeddings": draw(st.sampled_from([512, 4096, 32768, 131072, 1_000_000])),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if kind in ("gemma2", "gpt_oss") or draw(st.booleans()):
        config["sliding_window"] = draw(st.sampled_from([128, 1000, 4096]))
        config["use_sliding_window"] = True
        config["layer_types"] = draw(
            st.lists(
                st.sampled_from(["sliding_attention", "full_attention"]),
                min_size=layers,
                max_size=layers,
            )
        )
    if kind in ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"):
        config |= _experts(draw, kind)
    if kind == "deepseek_v3":
        config |= {
            "q_lora_rank": draw(st.sampled_from([None, 128, 1536])),
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_nextn_predict_layers": draw(st.integers(0, 1)),
        }
        config.pop("layer_types", None)
    quantization = draw(st.sampled_from(_QUANTIZATIONS))
    if kind == "gpt_oss":
        quantization = draw(st.sampled_from([None, {"quant_method": "mxfp4"}]))
    if quantization is not None:
        config["quantization_config"] = quantization
    return config


def _experts(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    count = draw(st.sampled_from([2, 8, 60, 128, 256]))
    name = {"mixtral": "num_local_experts", "gpt_oss": "num_local_experts"}.get(kind, "num_experts")
    if kind == "deepseek_v3":
        name = "n_routed_experts"
    found = {name: count, "num_experts_per_tok": draw(st.integers(1, min(8, count)))}
    if kind in ("qwen3_moe", "deepseek_v3"):
        found["moe_intermediate_size"] = 128 * draw(st.integers(1, 24))
    if kind == "deepseek_v3":
        found |= {"n_shared_experts": draw(st.integers(0, 2)), "first_k_dense_replace": 1}
    return found


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """A model of a random config."""
    config = draw(configs())
    return synthesize(read_config(config, name="random"), config)


@st.composite
def machines(draw: st.DrawFn) -> list[HostFacts]:
    """One to nine hosts, mostly alike."""
    kinds = [
        GpuFacts(name, int(gib * GIB), capability)
        for name, gib, capability in (
            ("T", 14.5, (7, 5)),
            ("A", 39.4, (8, 0)),
            ("H", 79.1, (9, 0)),
            ("B", 178.4, (10, 0)),
        )
    ]
    gpu, gpus = draw(st.sampled_from(kinds)), draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    hosts = [
        HostFacts(f"h{i}", gpus, gpu, draw(st.sampled_from([None, 1.0, 25.0, 400.0])))
        for i in range(draw(st.integers(1, 9)))
    ]
    if draw(st.integers(0, 4)) == 0:
        odd = draw(st.integers(0, len(hosts) - 1))
        other = draw(st.sampled_from(kinds))
        hosts[odd] = HostFacts(hosts[odd].name, draw(st.integers(1, 8)), other)
    return hosts


@st.composite
def questions(draw: st.DrawFn) -> Ask:
    """What somebody might ask, layouts that cannot be included."""
    serving = Serving(
        max_model_len=draw(st.sampled_from([None, 1, 100, 8192, 131072])),
        full_requests=draw(st.sampled_from([None, 0.5, 1.0, 16.0, 500.0])),
        gpu_memory_utilization=draw(st.sampled_from([0.1, 0.5, 0.9, 0.92, 0.99, 1.0])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "fp8"])),
        block_size=draw(st.sampled_from([None, 16, 64, 128])),
        max_num_batched_tokens=draw(st.sampled_from([None, 256, 65536])),
        enforce_eager=draw(st.booleans()),
        disable_hybrid_kv_cache_manager=draw(st.booleans()),
    )
    sizes = st.integers(1, 9)
    layout = Layout(draw(sizes), draw(sizes), draw(st.integers(1, 3)))
    return Ask(
        serving=serving,
        layout=draw(st.sampled_from([None, None, layout])),
        force_multi_node=draw(st.booleans()),
        force_tensor_across_hosts=draw(st.booleans()),
    )
