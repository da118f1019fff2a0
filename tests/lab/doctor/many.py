"""A description of many hosts."""

from __future__ import annotations

from collections.abc import Callable

from vllm_cluster.lab import Lab


def described(lab: Lab) -> Callable[[str], str]:
    """The text of a description whose hosts are all of `lab`, a pipeline stage on each."""

    def edit(text: str) -> str:
        head, rest = text.split("hosts:\n", 1)
        rest = rest[rest.index("head: node-a") :]
        rest = rest.replace("pipeline: 2", f"pipeline: {len(lab.hosts)}")
        hosts = "".join(f"  {h.name}:\n    address: {h.address}\n    gpus: 1\n" for h in lab.hosts)
        return f"{head}hosts:\n{hosts}\n{rest}"

    return edit
