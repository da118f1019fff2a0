"""Tiny models of every kind whose memory the plan predicts, written to disk from a seed.

The tensors' names and shapes are those that the plan makes from the same
config.json, so vLLM refuses to load a model whose tensors the plan has wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_cluster.plan.memory.config import read_config
from vllm_cluster.plan.memory.facts import DTYPE_BYTES, Tensor
from vllm_cluster.plan.memory.synthesis import synthesize

_COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 1000,  # not a multiple of 64: the padding shows
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_LLAMA = {**_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 32}
_QWEN3 = {**_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64}
_SLIDING = {"sliding_window": 128, "hidden_activation": "gelu_pytorch_tanh"}
_W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}

#: One of each kind; the numbers of layers are odd where an uneven split of stages shall show.
CONFIGS: dict[str, dict[str, Any]] = {
    "gqa": {**_LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 5},
    "mqa": {**_LLAMA, "num_key_value_heads": 1, "num_hidden_layers": 4},
    "tied": {
        **_QWEN3,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "tie_word_embeddings": True,
    },
    "sliding": {
        **_COMMON,
        **_SLIDING,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 64,
        "num_key_value_heads": 2,
        "num_hidden_layers": 8,
        "query_pre_attn_scalar": 64,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
        "layer_types": ["sliding_attention"] * 3
        + ["full_attention"]
        + ["sliding_attention"] * 3
        + ["full_attention"],
    },
    "moe": {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 64,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "mla": {
        **_COMMON,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": 8,
        "num_hidden_layers": 4,
        "q_lora_rank": 96,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 2,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0,
    },
    "w8a8": {
        **_LLAMA,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "quantization_config": _W8A8,
    },
    "awq": {
        **_LLAMA,
        "torch_dtype": "float16",
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "quantization_config": _AWQ,
    },
}


def write_model(folder: Path, kind: str) -> None:
    """Write config.json and one safetensors file with weights from a fixed seed."""
    config = CONFIGS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    facts = synthesize(read_config(config), config)
    write_safetensors(folder / "model.safetensors", list(_single(facts.tensors)))


def _single(tensors: tuple[Tensor, ...]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for tensor in tensors:
        for number in range(tensor.count):
            yield tensor.name.replace("*", str(number)), tensor.dtype, tensor.shape


def write_safetensors(path: Path, tensors: list[tuple[str, str, tuple[int, ...]]]) -> None:
    """A file of small random values; equal arguments give equal bytes."""
    header: dict[str, Mapping[str, Any]] = {}
    offset = 0
    for name, dtype, shape in tensors:
        size = DTYPE_BYTES[dtype]
        for side in shape:
            size *= side
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    source = random.Random(20261129)  # noqa: S311 - weights, not secrets
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, entry in header.items():
            first, past = entry["data_offsets"]
            file.write(_values(source, str(entry["dtype"]), name, past - first))


def _values(source: random.Random, dtype: str, name: str, size: int) -> bytes:
    """Bytes that are finite and small numbers in their dtype."""
    if name.endswith("norm.weight") and dtype == "BF16":
        return b"\x80\x3f" * (size // 2)
    noise = bytearray(source.randbytes(size))
    if dtype in ("BF16", "F16"):
        # The high byte holds sign and exponent: about 0.01, either sign.
        low, high = {"BF16": (0x3C, 0xBC), "F16": (0x20, 0xA0)}[dtype]
        if name.endswith("scale") or name.endswith("scales"):
            high = low
        noise[1::2] = noise[1::2].translate(bytes((high, low) * 128))
    elif dtype == "F32":
        noise[3::4] = b"\x3c" * (size // 4)
        noise[2::4] = noise[2::4].translate(bytes(b & 0x7F for b in range(256)))
    return bytes(noise)
