"""`vllm-cluster plan --what-if`: what would fit, a row a combination."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TypeVar

import click

from vllm_cluster.plan.decision import Ask
from vllm_cluster.plan.memory.facts import ModelFacts
from vllm_cluster.plan.settle import hosts, serving
from vllm_cluster.plan.whatif import Axes, Row, what_if
from vllm_cluster.spec import Cluster

T = TypeVar("T")

# GPUs as in a description (spec/model.py); more hosts than anybody plans for.
MOST_GPUS = 64
MOST_HOSTS = 1024

HEAD = (
    "max len", "requests", "kv dtype", "hosts", "gpus", "fits", "layout", "kv tokens", "at once",
    "why not",
)  # fmt: skip


def axes_of(lengths: str, requests: str, kv_dtype: str, host_counts: str, gpus: str) -> Axes:
    """Axes from comma-separated lists. Raises click.UsageError."""
    return Axes(
        max_model_len=_list("--max-model-len", lengths, int, 10**9),
        full_requests=_list("--requests", requests, float, 1e9),
        kv_cache_dtype=_list("--kv-dtype", kv_dtype, str),
        hosts=_list("--hosts", host_counts, int, MOST_HOSTS),
        gpus_per_host=_list("--gpus", gpus, int, MOST_GPUS),
    )


def _list(
    option: str, text: str, kind: Callable[[str], T], most: float = math.inf
) -> tuple[T, ...]:
    try:
        values = tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise click.UsageError(f"{option} takes values with commas, not {text!r}") from None
    # A nan is not above 0 either.
    if any(isinstance(value, int | float) and not 0 < value <= most for value in values):
        raise click.UsageError(f"{option} takes numbers above 0, at most {most:g}, not {text!r}")
    return values


def _rows(cluster: Cluster, facts: ModelFacts, axes: Axes) -> tuple[Row, ...]:
    description = cluster.description
    try:
        return what_if(facts, hosts(description), Ask(serving=serving(description)), axes)
    except (ValueError, KeyError) as error:
        raise click.UsageError(str(error.args[0])) from None


def what_if_json(cluster: Cluster, facts: ModelFacts, axes: Axes) -> str:
    """The rows as a JSON list (docs/plan-json.md)."""
    return json.dumps([row.to_json() for row in _rows(cluster, facts, axes)], indent=2)


def what_if_text(cluster: Cluster, facts: ModelFacts, axes: Axes) -> str:
    """The rows as a table."""
    table = [HEAD, *(_cells(row) for row in _rows(cluster, facts, axes))]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEAD) - 1)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in table
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.max_model_len:,}",
        "-" if row.full_requests is None else f"{row.full_requests:g}",
        row.kv_cache_dtype,
        str(row.hosts),
        str(row.gpus_per_host),
        "yes" if row.fits else "no",
        str(row.layout or "-"),
        f"{row.kv_tokens:,}",
        f"{row.max_concurrency:.1f}",
        row.why_not,
    )
