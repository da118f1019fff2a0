"""What a GPU holds besides weights and KV cache: a stated allowance.

vLLM measures this part at start-up by a dummy run; a plan has to estimate it.
Every figure below is a size that the code allocates, or a range seen in public
start-up logs, taken at its upper end; docs/memory.md gives the reasoning. Two
parts must be told apart, because vLLM does (v1/worker/gpu_worker.py, 0.33.0):

* inside gpu_memory_utilization: activations, CUDA graphs, buffers made while
  profiling. They lessen the KV cache.
* outside: the CUDA context and NCCL's buffers, taken before vLLM's first
  measurement. They must fit in what the utilization leaves free.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_cluster.plan.memory.facts import (
    DTYPE_BYTES,
    MIB,
    GpuFacts,
    Layout,
    ModelFacts,
    Serving,
)
from vllm_cluster.plan.memory.weights import serving_dtype

#: CUDA context, cuBLAS and kernel modules of one process: 0.4 to 0.6 GiB on A100 to H200.
CUDA_CONTEXT_BYTES = 600 * MIB
#: One NCCL communicator of a few ranks: its channels' buffers, 0.2 to 0.45 GiB.
NCCL_COMMUNICATOR_BYTES = 450 * MIB
#: Attention and sampling workspaces: FlashInfer's is 394 MiB, FlashAttention's metadata far less.
WORKSPACE_BYTES = 400 * MIB
#: Custom all-reduce: two buffers of 8 MiB and signals on every rank (custom_all_reduce.py).
CUSTOM_ALL_REDUCE_BYTES = 32 * MIB
#: Graphs: a private pool of this for each stage, and so much for every layer.
CUDA_GRAPH_POOL_BYTES = 256 * MIB
CUDA_GRAPH_LAYER_BYTES = 12 * MIB
#: The caching allocator's rounding, as a share of activations.
FRAGMENTATION = 0.1
#: Rows of 32-bit logits alive in the sampler at once: raw, processed, sorted, probabilities.
SAMPLER_COPIES = 4


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Tokens and requests of one step, after vLLM's defaults."""

    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """Bytes per GPU of one stage. `inside_bytes` count against the KV cache."""

    activations_bytes: int
    logits_bytes: int
    graphs_bytes: int
    workspace_bytes: int
    rope_bytes: int
    communication_bytes: int
    context_bytes: int

    @property
    def inside_bytes(self) -> int:
        """What vLLM subtracts from its share before it makes the KV cache."""
        # Activations and logits are not alive together; the larger one is the peak.
        peak = max(self.activations_bytes, self.logits_bytes)
        return peak + self.graphs_bytes + self.workspace_bytes + self.rope_bytes

    @property
    def outside_bytes(self) -> int:
        """What must be free beside vLLM's share."""
        return self.communication_bytes + self.context_bytes


def batch_limits(
    serving: Serving, gpu: GpuFacts, layout: Layout, max_model_len: int
) -> BatchLimits:
    """max_num_batched_tokens and max_num_seqs of `vllm serve`.

    Defaults of vLLM 0.32.0, engine/arg_utils.py `get_batch_defaults`: by the
    GPU's memory (and A100 apart), on CPUs by the number of ranks.
    """
    gib = gpu.memory_bytes / 1024**3
    if serving.platform == "cpu":
        tokens, requests = 2048 * layout.gpus_per_replica, 128 * layout.gpus_per_replica
    elif gib >= 160:
        tokens, requests = 16384, 1024
    elif gib >= 70 and "a100" not in gpu.name.lower():
        tokens, requests = 8192, 1024
    else:
        tokens, requests = 2048, 256
    requests = serving.max_num_seqs or requests
    if serving.max_num_batched_tokens is not None:
        return BatchLimits(serving.max_num_batched_tokens, requests)
    tokens = min(requests * max_model_len, tokens)
    if serving.max_num_seqs is None:
        requests = min(requests, tokens)
    return BatchLimits(tokens, requests)


def in_flight_tokens(serving: Serving, limits: BatchLimits, layout: Layout) -> int:
    """Tokens scheduled but not settled, which sliding windows keep beside the window.

    vLLM config/vllm.py `max_in_flight_tokens`: one batch per stage, and one
    more with asynchronous scheduling, which is on by default on GPUs and never on CPUs.
    """
    batches = layout.pipeline
    if serving.async_scheduling and serving.platform == "cuda":
        batches += 1
    return batches * limits.max_num_batched_tokens


def allowance(
    model: ModelFacts,
    layout: Layout,
    serving: Serving,
    *,
    limits: BatchLimits,
    stage: tuple[int, int],
    max_model_len: int,
) -> Allowance:
    """The allowance on each GPU of a stage, `stage` being its first and past-the-last layer."""
    width = DTYPE_BYTES[serving_dtype(model, serving)]
    last = stage[1] == model.layers
    groups = (layout.tensor > 1) + (layout.pipeline > 1) + (layout.data > 1)
    graphs = 0
    if not serving.enforce_eager:
        graphs = CUDA_GRAPH_POOL_BYTES + CUDA_GRAPH_LAYER_BYTES * (stage[1] - stage[0])
    return Allowance(
        activations_bytes=_activations(model, layout, limits.max_num_batched_tokens, width),
        logits_bytes=_logits(model, layout, limits, width) if last else 0,
        graphs_bytes=graphs,
        workspace_bytes=WORKSPACE_BYTES + (CUSTOM_ALL_REDUCE_BYTES if layout.tensor > 1 else 0),
        rope_bytes=_rope(model, max_model_len, width),
        communication_bytes=groups * NCCL_COMMUNICATOR_BYTES,
        context_bytes=CUDA_CONTEXT_BYTES,
    )


def _activations(model: ModelFacts, layout: Layout, tokens: int, width: int) -> int:
    """The widest moment of one layer: residual, its copy, and the layer's own tensors."""
    tp, hidden = layout.tensor, model.hidden
    residual = 3 * hidden
    query = model.query_heads * model.head_dim
    attention = 2 * (query + 2 * model.kv_heads * model.head_dim) // tp + hidden
    if model.mla is not None:
        mla = model.mla
        heads = model.query_heads // tp
        attention = heads * (3 * mla.qk_nope_head_dim + 2 * mla.qk_rope_head_dim + mla.v_head_dim)
        attention += 2 * (mla.q_lora_rank or 0) + 2 * mla.kv_lora_rank + hidden
    mlp = 3 * model.intermediate // tp + hidden
    if model.experts is not None:
        experts = model.experts
        wide = experts.intermediate if layout.expert_parallel else experts.intermediate // tp
        # Two workspaces of the fused kernel, each a row per token and chosen expert.
        moe = experts.per_token * (max(2 * wide, hidden) + max(wide, hidden))
        mlp = max(mlp, moe + 2 * hidden) if len(experts.layers) < model.layers else moe + 2 * hidden
    return int(tokens * (residual + max(attention, mlp)) * width * (1 + FRAGMENTATION))


def _logits(model: ModelFacts, layout: Layout, limits: BatchLimits, width: int) -> int:
    """The sampler's dummy run: gathered logits and its 32-bit copies for every request."""
    if model.runner == "pooling":
        return limits.max_num_batched_tokens * model.hidden * 4
    gathered = model.vocab * width * (2 if layout.tensor > 1 else 1)
    return limits.max_num_seqs * (gathered + SAMPLER_COPIES * 4 * model.vocab)


def _rope(model: ModelFacts, max_model_len: int, width: int) -> int:
    """The table of cosines and sines, shared by all layers of a rank."""
    rotary = model.mla.qk_rope_head_dim if model.mla is not None else model.head_dim
    return max(model.max_positions, max_model_len) * rotary * max(width, 4 if model.mla else width)
