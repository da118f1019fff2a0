"""What the plan asks of the link between hosts, and what other layouts would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.plan import Plan
from vllm_cluster.plan.memory.config import read_config
from vllm_cluster.plan.memory.facts import Layout, Serving, UnsupportedModelError
from vllm_cluster.plan.memory.traffic import Traffic, pipeline_traffic, tensor_traffic

# Faster than people read. At this rate for every request of the batch the link must keep up.
TOKENS_PER_S = 20.0
# vllm/config/scheduler.py, 0.26 to 0.33: what an API server takes where max-num-seqs is not given
# and the GPU is no large one.
DEFAULT_SEQUENCES = 256
# The part of the time between two tokens that waiting for the network may take.
LATENCY_SHARE = 0.25


@dataclass(frozen=True)
class Need:
    """What one way of cutting the model over the hosts asks of a link.

    `gbit_s`: for every request of the batch at TOKENS_PER_S. `rounds`: exchanges a token waits for.
    """

    layout: str
    bytes_per_token: int
    rounds: int
    sequences: int
    planned: bool

    @property
    def gbit_s(self) -> float:
        """Gbit/s that decoding needs."""
        return self.bytes_per_token * self.sequences * TOKENS_PER_S * 8 / 1e9

    def verdict(self, gbit_s: float, rtt_s: float) -> tuple[bool, str]:
        """Whether a link of that rate and round-trip time will do, and the words for it."""
        waiting_s = self.rounds * rtt_s
        budget_s = LATENCY_SHARE / TOKENS_PER_S
        needs = f"{self.layout}: needs {_rate(self.gbit_s)} of {_rate(gbit_s)} Gbit/s"
        if not gbit_s:
            return False, f"{needs}: no data came through"
        if self.gbit_s > gbit_s:
            return False, f"{needs}, {self.gbit_s / gbit_s:.1f} times too slow"
        if waiting_s > budget_s:
            return False, (
                f"{needs}, but waits {1e3 * waiting_s:.1f} ms a token for {self.rounds} exchanges "
                f"at {1e3 * rtt_s:.2f} ms, {waiting_s / budget_s:.1f} times too long"
            )
        return True, f"{needs}, good"


def _rate(gbit_s: float) -> str:
    return f"{gbit_s:.1f}" if gbit_s >= 0.1 else f"{gbit_s:.2g}"


def needs(plan: Plan, config: Mapping[str, Any], args: Mapping[str, Any]) -> list[Need]:
    """The plan's own need first, then that of tensor parallelism over all hosts.

    `config` is the model's config.json, `args` the description's arguments of vLLM. Empty for one
    host, and for models whose shape is not known here.
    """
    if len(plan.hosts) < 2:
        return []
    try:
        model = read_config(dict(config), name=plan.model_name)
    except (UnsupportedModelError, ValueError, KeyError):
        return []
    arguments = {name.replace("_", "-"): value for name, value in args.items()}
    sequences = int(arguments.get("max-num-seqs", DEFAULT_SEQUENCES))
    serving = Serving(dtype=str(arguments.get("dtype", "auto")))
    own = Layout(plan.tensor, plan.pipeline)
    spread = Layout(plan.world_size, 1)
    found = []
    if plan.pipeline > 1:
        sent = pipeline_traffic(model, own, serving, None)
        found.append(_need(f"PP={plan.pipeline}", sent, sequences, planned=True))
    sums = tensor_traffic(model, spread, serving, None)
    label = f"TP={plan.world_size} over this link"
    found.append(_need(label, sums, sequences, planned=plan.pipeline == 1))
    return found


def _need(label: str, sent: Traffic, sequences: int, *, planned: bool) -> Need:
    return Need(label, sent.bytes_per_token, sent.collectives_per_step, sequences, planned)


def config_of(source: Path) -> dict[str, Any]:
    """The model's config.json. Raises OSError, ValueError."""
    found = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{source}/config.json is no object")
    return found
