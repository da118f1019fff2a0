"""What is started on real vLLM, and how the plan's numbers are held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.memory_proof.run import Case
from tests.lab.memory_proof.tiny import write_model
from vllm_cluster.model.local import read_model
from vllm_cluster.plan.memory.facts import GIB, GpuFacts, Layout, Serving
from vllm_cluster.plan.memory.fit import Fit, fit

#: Weights on a rank may differ so much from what the worker holds.
WEIGHTS_TOLERANCE = 0.01

_FP8_CACHE = (("kv_cache_dtype", "fp8"),)
#: Every kind under TP and PP; then what changes the numbers in other ways.
MATRIX: tuple[Case, ...] = (
    Case("gqa", Layout(1, 1)),
    Case("gqa", Layout(2, 1)),
    Case("gqa", Layout(1, 2)),
    Case("mqa", Layout(2, 1)),
    Case("mqa", Layout(1, 2)),
    Case("tied", Layout(2, 1)),
    Case("tied", Layout(1, 2)),
    Case("sliding", Layout(2, 1)),
    Case("sliding", Layout(1, 2)),
    Case("moe", Layout(2, 1)),
    Case("moe", Layout(1, 2)),
    Case("moe", Layout(2, 1, expert_parallel=True)),
    Case("mla", Layout(2, 1)),
    Case("mla", Layout(1, 2)),
    Case("w8a8", Layout(2, 1)),
    Case("w8a8", Layout(1, 2)),
    Case("awq", Layout(2, 1)),
    Case("awq", Layout(1, 2)),
    Case("gqa", Layout(1, 2, partition=(1, 4))),
    Case("gqa", Layout(2, 2)),
    Case("gqa", Layout(1, 1), arguments=_FP8_CACHE),
    Case("gqa", Layout(1, 1), arguments=(("block_size", 32), ("dtype", "float32"))),
    Case("sliding", Layout(1, 1), arguments=(("disable_hybrid_kv_cache_manager", True),)),
    Case("gqa", Layout(2, 1), max_model_len=1000),
)
#: For every push: a latent, windows over stages, and one quantised model over two ranks.
SUBSET: tuple[Case, ...] = (
    Case("mla", Layout(1, 1)),
    Case("sliding", Layout(1, 2)),
    Case("w8a8", Layout(2, 1)),
)


@dataclass(frozen=True)
class Compared:
    """One number of a case: what the plan said and what vLLM did."""

    what: str
    predicted: float
    measured: float
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether they are equal, or close enough."""
        return abs(self.predicted - self.measured) <= self.tolerance * self.measured


def predict(case: Case, models: Path) -> Fit:
    """The plan for a case, from the headers of the model's file."""
    write_model(models / case.kind, case.kind)
    chosen = dict(case.arguments)
    serving = Serving(
        max_model_len=case.max_model_len,
        kv_cache_dtype=chosen.get("kv_cache_dtype", "auto"),
        dtype=chosen.get("dtype", "auto"),
        block_size=chosen.get("block_size"),
        disable_hybrid_kv_cache_manager=chosen.get("disable_hybrid_kv_cache_manager", False),
        # vLLM's offline class batches more by default than the server does.
        max_num_batched_tokens=4096 * case.layout.gpus_per_replica,
        max_num_seqs=8,
        platform="cpu",
        amx_tiles="amx_tile" in Path("/proc/cpuinfo").read_text().split(),
    )
    gpus = [GpuFacts("cpu", 64 * GIB)] * case.layout.gpus_per_replica
    model = read_model(models / case.kind)
    return fit(model, case.layout, serving, gpus, kv_available_bytes=case.kv_bytes)


def compare(planned: Fit, found: Mapping[str, Any]) -> Sequence[Compared]:
    """Every number that vLLM reports, beside the plan's."""
    spec = planned.groups[0].specs[0]
    numbers = [
        Compared("tokens of a block", spec.block_tokens, found["block_size"]),
        Compared("blocks", planned.kv_blocks, found["num_blocks"]),
        Compared("KV cache size, tokens, in the log", planned.kv_tokens, found["logged_kv_tokens"]),
        Compared(
            "maximum concurrency in the log",
            round(planned.concurrency, 2),
            found["logged_concurrency"],
        ),
    ]
    ranks = sorted(found["ranks"], key=lambda rank: int(rank["rank"]))
    numbers.append(Compared("ranks", len(planned.ranks), len(ranks)))
    for ours, theirs in zip(planned.ranks, ranks, strict=True):
        at = f"rank {ours.rank}"
        numbers += [
            Compared(f"{at}: KV cache, bytes", ours.kv_used_bytes, theirs["kv_bytes"]),
            Compared(
                f"{at}: weights, bytes",
                ours.weights.loaded_bytes,
                theirs["parameter_bytes"],
                WEIGHTS_TOLERANCE,
            ),
        ]
    return numbers
