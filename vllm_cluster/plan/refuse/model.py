"""What vLLM reads in a model's config.json before it decides (0.26.0 to 0.33.0).

Written after vllm/transformers_utils/model_arch_config_convertor.py. Everything answers None where
the file does not say.
"""

from collections.abc import Mapping
from typing import Any

KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# RoPE kinds whose factor is in max_position_embeddings already (vllm/config/model.py, 0.33.0).
SCALED = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})


class ModelConfig:
    """A view of a config.json."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        inner = config.get("text_config") or config.get("llm_config") or {}
        self.text: Mapping[str, Any] = inner if "hidden_size" in inner else config

    def _first(self, names: tuple[str, ...]) -> Any:
        return next((self.text[name] for name in names if self.text.get(name) is not None), None)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The names of the model's class."""
        return tuple(self.config.get("architectures") or ())

    @property
    def layers(self) -> int | None:
        """How many hidden layers there are."""
        return self.text.get("num_hidden_layers")

    @property
    def heads(self) -> int | None:
        """How many attention heads there are in all."""
        return self.text.get("num_attention_heads")

    @property
    def kv_heads(self) -> int | None:
        """How many heads have keys and values of their own."""
        return self._first((*KV_HEADS, "num_attention_groups")) or self.heads

    @property
    def experts(self) -> int:
        """How many experts there are; 0 for a dense model."""
        found = self._first(EXPERTS)
        if isinstance(found, list):
            found = found[0] if found else 0
        if not found:
            blocks = self.text.get("block_configs") or ()
            counts = [each.get("n_routed_experts") for each in blocks if isinstance(each, dict)]
            found = max((count or 0 for count in counts), default=0)
        return int(found)

    @property
    def latent(self) -> bool:
        """Whether the KV cache is latent (MLA)."""
        return self.text.get("kv_lora_rank") is not None

    @property
    def dtype(self) -> str | None:
        """The dtype of the checkpoint, such as "bfloat16"."""
        found = None
        for config in (self.config, self.text):
            found = found or config.get("dtype") or config.get("torch_dtype")
        return found.removeprefix("torch.") if isinstance(found, str) else None

    @property
    def quantisation(self) -> str | None:
        """The quantisation method that the checkpoint names."""
        config = self.config.get("quantization_config") or self.text.get("quantization_config")
        config = config or self.config.get("compression_config") or {}
        method = str(config.get("quant_method", "")).lower()
        return method.replace("compressed_tensors", "compressed-tensors") or None

    @property
    def longest(self) -> int | None:
        """The longest context that vLLM derives, in tokens; None where it would have to guess."""
        lengths = [self.text[name] for name in LENGTHS if self.text.get(name)]
        if self.text.get("model_max_length"):
            return int(self.text["model_max_length"])
        rope = self.text.get("rope_scaling") or self.text.get("rope_parameters") or {}
        kind = rope.get("rope_type") or rope.get("type") or "default"
        layered = any(isinstance(value, dict) for value in rope.values())
        if not lengths or layered or not isinstance(kind, str):
            return None
        gemma = "gemma3" in str(self.config.get("model_type"))
        plain = gemma or kind in SCALED or kind == "default"
        longest = int(min(lengths) * (1 if plain else rope.get("factor") or 1))
        if kind == "yarn":  # 0.26.0 and 0.27.1 go by the length before scaling
            longest = max(
                longest,
                int(
                    (rope.get("original_max_position_embeddings") or 0) * (rope.get("factor") or 1)
                ),
            )
        return longest
