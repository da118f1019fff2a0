"""The KV cache of one layer on one rank, and the blocks that vLLM cuts it into.

Follows vLLM 0.32.0 and 0.33.0, v1/kv_cache_interface.py (FullAttentionSpec,
SlidingWindowSpec, ChunkedLocalAttentionSpec, MLAAttentionSpec). A block holds
`block_tokens` tokens of one layer; its bytes are a page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from vllm_cluster.plan.memory.facts import (
    DTYPE_BYTES,
    Attention,
    GpuFacts,
    Layout,
    LayoutError,
    ModelFacts,
    Serving,
)
from vllm_cluster.plan.memory.weights import serving_dtype

SpecKind = Literal["full", "sliding", "chunked", "mla"]
#: Bytes of one value, by --kv-cache-dtype. Types with scales beside the values are not here.
KV_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer caches on one rank."""

    kind: SpecKind
    block_tokens: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    element_bytes: int
    window_tokens: int | None = None
    padded_page_bytes: int | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.kv_heads * (self.head_dim + self.head_dim_v) * self.element_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer."""
        return self.padded_page_bytes or self.block_tokens * self.token_bytes

    def with_block(self, block_tokens: int) -> LayerSpec:
        """The same layer cut into other blocks."""
        return replace(self, block_tokens=block_tokens)

    def blocks_per_request(self, max_model_len: int, in_flight_tokens: int) -> int:
        """Blocks that one request of max_model_len can hold.

        A sliding window keeps its window and what is scheduled but not yet
        settled, and one block more because it need not start at a block's edge.
        """
        if self.kind in ("full", "mla"):
            return ceil(max_model_len / self.block_tokens)
        assert self.window_tokens is not None  # noqa: S101 - made with a window
        if self.kind == "chunked":
            return ceil(
                min(self.window_tokens + in_flight_tokens, max_model_len) / self.block_tokens
            )
        held = min(self.window_tokens - 1 + in_flight_tokens, max_model_len)
        return ceil(held / self.block_tokens) + 1


def kv_element_bytes(model: ModelFacts, serving: Serving) -> int:
    """Bytes of one cached value.

    Raises LayoutError for a --kv-cache-dtype whose layout is not known here.
    """
    if serving.kv_cache_dtype == "auto":
        return DTYPE_BYTES[serving_dtype(model, serving)]
    if serving.kv_cache_dtype not in KV_DTYPE_BYTES:
        raise LayoutError(
            f"kv_cache_dtype {serving.kv_cache_dtype!r} packs scales beside its values, its size "
            f"is not known here; known: auto, {', '.join(KV_DTYPE_BYTES)}"
        )
    return KV_DTYPE_BYTES[serving.kv_cache_dtype]


def rank_kv_heads(kv_heads: int, tp: int) -> int:
    """Key-value heads on a rank: divided, or one each when there are fewer than ranks."""
    return max(1, kv_heads // tp)


def layer_specs(
    model: ModelFacts, layout: Layout, serving: Serving, gpu: GpuFacts | None
) -> tuple[LayerSpec, ...]:
    """What every layer of the model caches on a rank that has it.

    Encoders of pooling models cache nothing and give an empty tuple.
    """
    if caches_nothing(model):
        return ()
    block = _block_tokens(model, serving, gpu)
    if serving.platform == "cpu" and model.mla is None and block % 32:
        raise LayoutError(f"block_size {block} is not a multiple of 32, which the CPU needs")
    element = kv_element_bytes(model, serving)
    return tuple(_spec(a, layout.tensor, block, element) for a in model.attention)


def caches_nothing(model: ModelFacts) -> bool:
    """Whether the model looks at the whole text at once and keeps no cache (BERT and kin)."""
    return model.model_type in ("bert", "xlm-roberta", "roberta", "modernbert", "nomic_bert")


def _spec(attention: Attention, tp: int, block: int, element: int) -> LayerSpec:
    heads = 1 if attention.kind == "mla" else rank_kv_heads(attention.kv_heads, tp)
    return LayerSpec(
        kind=attention.kind,
        block_tokens=block,
        kv_heads=heads,
        head_dim=attention.head_dim,
        head_dim_v=attention.head_dim_v,
        element_bytes=element,
        window_tokens=attention.window_tokens,
    )


def _block_tokens(model: ModelFacts, serving: Serving, gpu: GpuFacts | None) -> int:
    default = default_block_tokens(model, serving, gpu)
    if serving.platform == "cpu" and model.mla is not None and not serving.amx_tiles:
        return default  # and no other, whatever --block-size says
    return serving.block_size or default


def default_block_tokens(model: ModelFacts, serving: Serving, gpu: GpuFacts | None) -> int:
    """Tokens of a block when nobody gives --block-size.

    CUDA: 16 for FlashAttention, FlashInfer and FlashAttention MLA; latent
    attention on Blackwell takes FlashInfer MLA, whose smallest block is 32
    (vLLM 0.33.0, platforms/cuda.py `_get_backend_priorities`, platforms/interface.py
    `_preferred_block_size_for_backends`); before Hopper it is Triton's 16. FlashAttention
    MLA needs Hopper. CPU: 128, whatever the attention when the processor has AMX tiles;
    without them latent attention takes 16 (platforms/cpu.py, 0.32.0).
    """
    if serving.platform == "cpu":
        return 16 if model.mla is not None and not serving.amx_tiles else 128
    major = gpu.compute_capability[0] if gpu is not None else 8
    if model.mla is not None and major == 10:
        return 32
    return 16
