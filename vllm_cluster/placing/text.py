"""What a run came to, in sentences."""

from __future__ import annotations

from vllm_cluster.control.context import Context
from vllm_cluster.placing.limit import limit
from vllm_cluster.placing.place import Outcome


def summary(known: Context, out: Outcome) -> list[str]:
    """Hosts, size, time, the rate against the link's; who was passed by; who has it not."""
    weights = known.plan.weights
    lines = []
    if out.placed:
        size = f"{out.total_bytes / 2**30:.2f} GiB, {out.identity[:16]}"
        has = "has" if len(out.placed) == 1 else "have"
        lines.append(f"{', '.join(out.placed)} {has} {weights.model} {weights.revision} ({size})")
    if out.moved_bytes and out.seconds:
        most_bytes = max((sum(peers.values()) for peers in out.carried.values()), default=0)
        gbit_s = most_bytes * 8 / out.seconds / 1e9
        link, known_limit = "", limit(known, out)
        if known_limit is not None:
            link = f", {gbit_s / known_limit[0]:.0%} of the {known_limit[0]:.3g} Gbit/s"
            link += f" {known_limit[1]}"
        lines.append(
            f"{out.moved_bytes / 2**30:.2f} GiB from host to host in {out.seconds:.0f} s: "
            f"{gbit_s:.2f} Gbit/s to each{link}"
        )
    return [*lines, *out.notes, *sorted(set(out.failed.values()))]
