"""The collective test for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vllm_cluster.doctor.collective import Collective


def problem(found: Collective, *, rdma: bool) -> str:
    """What is wrong; empty when it is as described."""
    if found.blind:
        return f"no answer of {found.failed}: {found.error}"
    if found.error:
        return f"it failed on {found.failed}: {found.error}"
    if rdma and found.backend == "nccl" and found.transport.kind != "RDMA":
        return f"the description says RDMA, NCCL took {found.transport.text()}"
    return ""


def text(found: Collective, wrong: str) -> str:
    """A line a size, the transport, the verdict."""
    return "\n".join(_lines(found, wrong))


def _lines(found: Collective, wrong: str) -> Iterator[str]:
    if found.lines:
        yield f"{'bytes':>10}  {'all-reduce':>12}  {'there and back':>15}  {'rate':>12}"
    for line in found.lines:
        yield (
            f"{line.size_bytes:>10}  {1e3 * line.all_reduce_s:>9.3f} ms  "
            f"{1e3 * line.send_recv_s:>12.3f} ms  {line.gbit_s:>5.2f} Gbit/s"
        )
    if not found.error:
        took = found.transport.text() if found.backend == "nccl" else "TCP"
        yield f"{found.backend} over {took}, {found.seconds:.1f} s in all"
    for words in found.transport.warnings[:5]:
        yield f"NCCL WARN {words}"
    yield wrong[0].upper() + wrong[1:] if wrong else "Sums are right on every rank."


def to_json(found: Collective, wrong: str) -> dict[str, Any]:
    """Plain values."""
    return asdict(found) | {"problem": wrong, "exit_code": exit_code(found, wrong)}


def exit_code(found: Collective, wrong: str) -> int:
    """0 as described, 1 not, 2 could not look."""
    return 2 if found.blind else 1 if wrong else 0
