"""What a memory plan is made from: a model, a GPU, a layout, a workload.

Everything here is frozen and plain, so a plan can be computed, compared and
printed without touching a disk, a GPU or a network. All sizes are bytes
unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

GIB = 1024**3
MIB = 1024**2

#: Bytes of one element, by the dtype names of the safetensors format.
DTYPE_BYTES: dict[str, int] = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}

#: The names people write in a config.json or after --dtype.
DTYPE_NAMES: dict[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "half": "F16",
}

AttentionKind = Literal["full", "sliding", "chunked", "mla"]
Runner = Literal["generate", "pooling"]
Platform = Literal["cuda", "cpu"]


class UnsupportedModelError(ValueError):
    """The memory of this model cannot be predicted; the message says what is unknown."""


class LayoutError(ValueError):
    """vLLM would refuse this layout for this model; the message says why and what would do."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one decoder layer, before any split over GPUs.

    `window_tokens` is the sliding window or the chunk; None for full attention.
    For `mla`, `head_dim` is the latent plus the rope part and `kv_heads` is 1
    (vLLM caches one latent per token: v1/kv_cache_interface.py, MLAAttentionSpec).
    """

    kind: AttentionKind
    kv_heads: int
    head_dim: int
    head_dim_v: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Mla:
    """The ranks of multi-head latent attention (DeepSeek V2, V3 and their kin)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts; `layers` are the decoder layers that have one."""

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the checkpoint's linear layers are stored.

    `method` is vLLM's name (fp8, awq, gptq, mxfp4, compressed-tensors …),
    `block` the [out, in] block of fp8 scales, `group` the group size of int4,
    `ignored` the module names left in the model's dtype.
    """

    method: str
    bits: int = 16
    group: int = -1
    block: tuple[int, int] | None = None
    symmetric: bool = True
    activation_order: bool = False
    format: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """Equal tensors of a checkpoint.

    `name` has `*` in place of the expert's number, `layer` is the decoder layer
    or None, and `count` says how many such tensors there are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int = 1
    layer: int | None = None

    @property
    def elements(self) -> int:
        """Elements of one of them."""
        product = 1
        for side in self.shape:
            product *= side
        return product

    @property
    def stored_bytes(self) -> int:
        """Bytes of all of them as they lie in the checkpoint."""
        return self.elements * self.count * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """All that is known of a model without its weights.

    Compared by identity, so that sums over its tensors can be remembered.
    """

    name: str
    model_type: str
    architecture: str
    layers: int
    hidden: int
    vocab: int
    query_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    attention: tuple[Attention, ...]
    tied_embeddings: bool
    dtype: str
    max_positions: int
    default_max_model_len: int
    runner: Runner = "generate"
    mla: Mla | None = None
    experts: Experts | None = None
    quantization: Quantization | None = None
    tensors: tuple[Tensor, ...] = field(default=(), repr=False)
    tensors_from: Literal["headers", "config"] = "config"
    published_bytes: int | None = None

    @property
    def stored_bytes(self) -> int:
        """Bytes of the checkpoint: the sum of its tensors."""
        return sum(tensor.stored_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU. `memory_bytes` is what CUDA reports as total, not the number on the box."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] = (8, 0)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine and its equal GPUs; `link_gbit_s` is its NIC towards the others."""

    name: str
    gpus: int
    gpu: GpuFacts
    link_gbit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How many GPUs share a layer (tensor), how many stages (pipeline), how many copies (data).

    `partition` are the layers of each stage as in VLLM_PP_LAYER_PARTITION, or
    None for vLLM's own rule. With `expert_parallel`, whole experts are dealt
    out over tensor x data ranks instead of slices of every expert.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    partition: tuple[int, ...] | None = None
    expert_parallel: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all copies."""
        return self.tensor * self.pipeline * self.data

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one copy of the model: vLLM's world size."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        words = [f"TP={self.tensor}", f"PP={self.pipeline}"]
        if self.data > 1:
            words.append(f"replicas={self.data}")
        return " x ".join(words)


@dataclass(frozen=True, slots=True)
class Serving:
    """What is asked of the server; the fields are vLLM's arguments of the same meaning.

    `full_requests` is how many requests of `max_model_len` tokens must be held
    at once; None asks for one, and for some more where that costs no further
    host. Elsewhere None stands for vLLM's default, resolved by the plan.
    `amx_tiles` says whether the processors have AMX tiles; only `platform: cpu` asks.
    """

    max_model_len: int | None = None
    full_requests: float | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    disable_hybrid_kv_cache_manager: bool = False
    async_scheduling: bool = True
    kv_cache_memory_bytes: int | None = None
    platform: Platform = "cuda"
    amx_tiles: bool = True
