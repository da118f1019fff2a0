"""What tensor and pipeline parallelism send over the link between hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vllm_cluster.plan.memory.facts import DTYPE_BYTES, Layout, ModelFacts, Serving
from vllm_cluster.plan.memory.weights import serving_dtype

#: Share of a link's nominal rate that a transfer of tensors reaches.
LINK_EFFICIENCY = 0.9
#: An all-reduce over a network, beside the time for its bytes: start, one round trip, end.
ALL_REDUCE_LATENCY_S = 30e-6


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one token sends through one host's link, and what that allows.

    `tokens_per_s` is the bound that the link sets on prefill and decode
    together; `step_latency_s` what the collectives add to each decode step.
    None where no link speed is known.
    """

    kind: Literal["all-reduces", "stage boundary"]
    bytes_per_token: int
    collectives_per_step: int
    link_gbit_s: float | None
    tokens_per_s: float | None
    step_latency_s: float

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "traffic"."""
        return {
            "kind": self.kind,
            "bytes_per_token": self.bytes_per_token,
            "collectives_per_step": self.collectives_per_step,
            "link_gbit_s": self.link_gbit_s,
            "tokens_per_s": None if self.tokens_per_s is None else round(self.tokens_per_s),
            "step_latency_s": self.step_latency_s,
        }


def tensor_traffic(
    model: ModelFacts, layout: Layout, serving: Serving, link_gbit_s: float | None
) -> Traffic:
    """Tensor parallelism across hosts.

    vLLM sums partial results twice a layer, after attention and after the MLP
    (RowParallelLinear, reduce_results), and once for the embedding. A ring
    all-reduce over n ranks sends 2 (n - 1) / n of the message through every
    link of the ring, so also through the one between hosts.
    """
    message = model.hidden * DTYPE_BYTES[serving_dtype(model, serving)]
    sums = 2 * model.layers // layout.pipeline + 1
    ranks = layout.tensor
    size = int(sums * message * 2 * (ranks - 1) / ranks)
    return _traffic("all-reduces", size, sums, link_gbit_s)


def pipeline_traffic(
    model: ModelFacts, layout: Layout, serving: Serving, link_gbit_s: float | None
) -> Traffic:
    """Pipeline stages on different hosts: hidden states and residual, once per boundary.

    vLLM sends both tensors from stage to stage (models/llama.py,
    make_empty_intermediate_tensors: hidden_states, residual), sliced over the
    tensor-parallel ranks, so their sum crosses the link once.
    """
    size = 2 * model.hidden * DTYPE_BYTES[serving_dtype(model, serving)]
    return _traffic("stage boundary", size, layout.pipeline - 1, link_gbit_s)


def _traffic(
    kind: Literal["all-reduces", "stage boundary"],
    size: int,
    collectives: int,
    link_gbit_s: float | None,
) -> Traffic:
    rate = None
    if link_gbit_s is not None and size:
        rate = link_gbit_s * 1e9 / 8 * LINK_EFFICIENCY / size
    latency_s = collectives * ALL_REDUCE_LATENCY_S
    return Traffic(kind, size, collectives, link_gbit_s, rate, latency_s)
