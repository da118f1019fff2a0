"""What would fit: one line for every combination of a few values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from vllm_cluster.plan.decide import decide
from vllm_cluster.plan.decision import Ask
from vllm_cluster.plan.memory.facts import HostFacts, Layout, ModelFacts
from vllm_cluster.plan.memory.fit import layout_json


@dataclass(frozen=True, slots=True)
class Axes:
    """Values to try; an empty axis keeps what the question says."""

    max_model_len: tuple[int, ...] = ()
    full_requests: tuple[float, ...] = ()
    kv_cache_dtype: tuple[str, ...] = ()
    hosts: tuple[int, ...] = ()
    gpus_per_host: tuple[int, ...] = ()

    def __len__(self) -> int:
        sizes = (
            len(values) or 1
            for values in (
                self.max_model_len,
                self.full_requests,
                self.kv_cache_dtype,
                self.hosts,
                self.gpus_per_host,
            )
        )
        number = 1
        for size in sizes:
            number *= size
        return number


@dataclass(frozen=True, slots=True)
class Row:
    """One combination and its answer. `max_concurrency` is that of all replicas together."""

    max_model_len: int
    full_requests: float | None
    kv_cache_dtype: str
    hosts: int
    gpus_per_host: int
    fits: bool
    layout: Layout | None
    kv_tokens: int
    max_concurrency: float
    why_not: str

    def to_json(self) -> dict[str, Any]:
        """See docs/plan-json.md, "what-if row"."""
        return {
            "max_model_len": self.max_model_len,
            "full_requests": self.full_requests,
            "kv_cache_dtype": self.kv_cache_dtype,
            "hosts": self.hosts,
            "gpus_per_host": self.gpus_per_host,
            "fits": self.fits,
            "layout": layout_json(self.layout) if self.layout else None,
            "kv_tokens": self.kv_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
            "why_not": self.why_not,
        }


#: More lines than a person reads, and more than are worth the time.
MAX_ROWS = 2000


def what_if(model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask, axes: Axes) -> tuple[Row, ...]:
    """A row for every combination of the axes, in their order.

    More hosts than are given, or other GPU counts, are the first host repeated
    or changed. The layout is chosen anew for every row unless the question
    names one. Raises ValueError for more than MAX_ROWS combinations.
    """
    if len(axes) > MAX_ROWS:
        raise ValueError(f"{len(axes)} combinations are more than {MAX_ROWS}; shorten an axis")
    return tuple(_rows(model, hosts, ask, axes))


def _rows(model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask, axes: Axes) -> Iterator[Row]:
    serving = ask.serving
    for length, requests, dtype, number, gpus in product(
        axes.max_model_len or (serving.max_model_len or model.default_max_model_len,),
        axes.full_requests or (serving.full_requests,),
        axes.kv_cache_dtype or (serving.kv_cache_dtype,),
        axes.hosts or (len(hosts),),
        axes.gpus_per_host or (hosts[0].gpus,),
    ):
        changed = replace(
            serving, max_model_len=length, full_requests=requests, kv_cache_dtype=dtype
        )
        machines = _machines(hosts, number, gpus if axes.gpus_per_host else None)
        answer = decide(model, machines, replace(ask, serving=changed))
        found, fits = answer.fit, answer.verdict == "fits"
        copies = answer.layout.data if answer.layout else 1
        yield Row(
            max_model_len=length,
            full_requests=requests,
            kv_cache_dtype=dtype,
            hosts=number,
            gpus_per_host=gpus,
            fits=fits,
            layout=answer.layout or (found.layout if found else None),
            kv_tokens=found.kv_tokens * copies if found else 0,
            max_concurrency=found.concurrency * copies if found else 0.0,
            why_not="" if fits else answer.refusals[0].reason,
        )


def _machines(hosts: Sequence[HostFacts], number: int, gpus: int | None) -> list[HostFacts]:
    """So many hosts: those given, then copies of the first."""
    machines = list(hosts[:number])
    machines += [
        replace(hosts[0], name=f"{hosts[0].name}+{extra}")
        for extra in range(1, number - len(machines) + 1)
    ]
    return [replace(host, gpus=gpus) if gpus else host for host in machines]
