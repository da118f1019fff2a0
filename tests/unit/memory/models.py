"""Models for the tests: the public ones of the fixtures, and made ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_cluster.model.local import read_model
from vllm_cluster.plan.memory.config import read_config
from vllm_cluster.plan.memory.facts import GIB, GpuFacts, ModelFacts
from vllm_cluster.plan.memory.synthesis import synthesize

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "models"
PUBLIC = sorted(folder.name for folder in FIXTURES.iterdir() if folder.is_dir())

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 10,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def public(name: str) -> ModelFacts:
    """A public model of the fixtures."""
    return read_model(FIXTURES / name)


def made(**changes: Any) -> ModelFacts:
    """A small Llama with other values in its config.json."""
    config = {**LLAMA, **changes}
    return synthesize(read_config(config, name="made"), config)


def gpu(gib: float, name: str = "test-gpu", capability: tuple[int, int] = (8, 0)) -> GpuFacts:
    """A GPU with so much memory."""
    return GpuFacts(name, int(gib * GIB), capability)
