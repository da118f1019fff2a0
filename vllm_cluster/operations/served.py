"""Where vLLM answers, as the last word of a run that started it."""

from __future__ import annotations

import time

from pyinfra.context import host

from vllm_cluster.facts.units import ServedPort
from vllm_cluster.operations.refuse import note_now

VLLM = "vllm.service"


def say_served(address: str, began_s: float | None = None) -> None:
    """By what lies on the host: the description may have another port by now."""
    if not address or not host.state.is_executing:
        return
    port = host.get_fact(ServedPort)
    where = f" at http://{address}:{port}/v1" if port else ""
    took = f"; its start took {time.monotonic() - began_s:.0f} s" if began_s is not None else ""
    note_now(f"vLLM answers{where}{took}")
