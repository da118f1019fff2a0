"""Which layout: one GPU, one host, several hosts, replicas, or none, and why.

The rules, in this order:

1. As few GPUs as hold the weights, the allowance and the KV cache asked for.
2. Tensor parallelism inside a host, pipeline parallelism between hosts.
3. More than one host for one replica only when one host cannot hold it.
4. Replicas, one a host, when one host holds the model but not the load.
5. What a person writes instead is refused when it breaks 2 or 3, unless they
   say that they mean it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal

from vllm_cluster.plan.decide_text import (
    no_layout_fits,
    reasons_for,
    several_hosts_for_nothing,
    tensor_across_hosts,
)
from vllm_cluster.plan.decision import (
    Ask,
    Candidate,
    Decision,
    Refusal,
    Shape,
    place_ranks,
    replica_gpus,
    tensor_group_spans_hosts,
)
from vllm_cluster.plan.memory.facts import HostFacts, Layout, LayoutError, ModelFacts
from vllm_cluster.plan.memory.fit import Fit, fit
from vllm_cluster.plan.memory.search import host_shape, try_fit, valid_tensor_sizes
from vllm_cluster.plan.memory.traffic import Traffic, pipeline_traffic, tensor_traffic

#: Full-length requests that a server shall hold at once when nobody says how many.
COMFORTABLE_REQUESTS = 4.0


def decide(model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask) -> Decision:
    """The layout for a model on hosts, head first, or the one asked for, weighed.

    Raises ValueError without hosts; everything else is in the decision.
    """
    if not hosts or min(host.gpus for host in hosts) < 1:
        raise ValueError("a decision needs at least one host, each with a GPU")
    mixed = _mixed_gpus(hosts)
    if ask.layout is not None:
        return _asked(model, hosts, ask, ask.layout, mixed)
    return _auto(model, hosts, ask, mixed)


def _mixed_gpus(hosts: Sequence[HostFacts]) -> Refusal | None:
    kinds = {host.gpu.name for host in hosts}
    if len(kinds) == 1:
        return None
    return Refusal(
        "mixed-gpus",
        "the hosts have different GPUs (" + ", ".join(sorted(kinds)) + "): every rank gets the "
        "share of the smallest and waits for the slowest",
        "use hosts with the same GPU for one replica, or describe two clusters",
    )


def _auto(
    model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask, mixed: Refusal | None
) -> Decision:
    tried: list[Candidate] = []
    best: Fit | None = None
    narrow: _Weighed | None = None
    for layout, used, found in _weighed(model, hosts, ask, mixed):
        if narrow is not None and len(used) > 1:
            break
        tried.append(_candidate(found, layout, len(used)))
        if found.fits and _roomy(found, ask, len(used)):
            return _decision(used, ask, layout, found, tuple(tried))
        if found.fits and (narrow is None or found.kv_blocks > narrow[2].kv_blocks):
            narrow = (layout, used, found)
        if best is None or _nearness(found) > _nearness(best):
            best = found
    if narrow is not None:
        layout, used, found = narrow
        return _decision(used, ask, layout, found, tuple(tried))
    refusals = [] if mixed is None else [mixed]
    refusals.append(no_layout_fits(model, hosts, ask, best))
    return Decision("refused", None, None, best, (), (), tuple(refusals), tuple(tried))


_Weighed = tuple[Layout, Sequence[HostFacts], Fit]


def _weighed(
    model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask, mixed: Refusal | None
) -> Iterator[_Weighed]:
    """The candidates that vLLM would accept, each with its memory."""
    for layout, used in _candidates(model, hosts, ask):
        places = place_ranks(layout, used)
        spans = len({place.host for place in places if place.replica == 0}) > 1
        if spans and mixed is not None:
            continue
        if len(places) < layout.gpus or tensor_group_spans_hosts(layout, places):
            continue
        serving = ask_one(ask, layout).serving
        found = try_fit(model, layout, serving, replica_gpus(places, used))
        if found is not None:
            yield layout, used, found


def _roomy(found: Fit, ask: Ask, hosts: int) -> bool:
    """Whether a layout that fits also serves more than a request or two.

    Asked when nobody said how many requests to hold: a wider layout on the
    same host is then worth its GPUs, a second host is not.
    """
    if ask.serving.full_requests is not None or not found.blocks_per_request or hosts > 1:
        return True
    return found.concurrency >= COMFORTABLE_REQUESTS


def _nearness(found: Fit) -> tuple[int, int]:
    """Of layouts that do not fit, the one with most cache, then with most GPUs, is nearest."""
    return found.kv_blocks, found.layout.gpus


def _candidates(
    model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask
) -> Iterator[tuple[Layout, Sequence[HostFacts]]]:
    """Layouts in the order of the rules, each with the hosts that it uses."""
    head = hosts[0]
    sizes, shape = valid_tensor_sizes(model, head.gpus), host_shape(model, head.gpus)
    for tensor in sizes:
        yield Layout(tensor), hosts[:1]
    if shape is None:
        return
    tensor, stages = shape
    if stages > 1 and tensor * stages > sizes[-1]:
        yield Layout(tensor, stages), hosts[:1]
    for layout in _replicas(model, hosts, ask, sizes):
        yield layout, hosts[: ceil(layout.gpus / head.gpus)]
    even = all(host.gpus == head.gpus for host in hosts)
    for number in range(2, len(hosts) + 1):
        if not even or number * stages > model.layers:
            return
        yield Layout(tensor, number * stages), hosts[:number]


def _replicas(
    model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask, sizes: Sequence[int]
) -> Iterator[Layout]:
    """One replica a host, where a host holds one but not the whole load."""
    head, widest = hosts[0], sizes[-1]
    wanted = ask.serving.full_requests
    if wanted is None:
        return
    one = replace(ask.serving, full_requests=1.0)
    single = try_fit(model, Layout(widest), one, [head.gpu] * widest)
    if single is None or not single.fits or len(hosts) < 2 or head.gpus // widest != 1:
        return
    number = ceil(wanted / single.concurrency)
    if number <= len(hosts):
        yield Layout(widest, data=number)


def ask_one(ask: Ask, layout: Layout) -> Ask:
    """The share of the load that one of `layout.data` replicas gets."""
    if ask.serving.full_requests is None:
        return ask
    share = ask.serving.full_requests / layout.data
    return replace(ask, serving=replace(ask.serving, full_requests=share))


def _candidate(found: Fit, layout: Layout, hosts: int) -> Candidate:
    note = (
        found.problems[0]
        if found.problems
        else (
            f"holds {found.concurrency * layout.data:.1f} requests of {found.max_model_len} tokens"
        )
    )
    return Candidate(layout, hosts, found.fits, note)


def _decision(
    used: Sequence[HostFacts],
    ask: Ask,
    layout: Layout,
    found: Fit,
    tried: tuple[Candidate, ...],
) -> Decision:
    places = place_ranks(layout, used)
    shape = _shape(layout, {place.host for place in places})
    traffic = _traffic(found.model, layout, ask, used) if shape == "several hosts" else None
    reasons = reasons_for(layout, shape, found, tried=tried, traffic=traffic, chosen=True)
    return Decision("fits", layout, shape, found, places, reasons, (), tried, traffic)


def _shape(layout: Layout, hosts: set[str]) -> Shape:
    if layout.data > 1:
        return "replicas"
    if layout.gpus == 1:
        return "one gpu"
    return "one host" if len(hosts) == 1 else "several hosts"


def _traffic(model: ModelFacts, layout: Layout, ask: Ask, hosts: Sequence[HostFacts]) -> Traffic:
    links = [host.link_gbit_s for host in hosts if host.link_gbit_s is not None]
    link = min(links, default=None)
    if tensor_group_spans_hosts(layout, place_ranks(layout, hosts)):
        return tensor_traffic(model, layout, ask.serving, link)
    return pipeline_traffic(model, layout, ask.serving, link)


def _asked(
    model: ModelFacts,
    hosts: Sequence[HostFacts],
    ask: Ask,
    layout: Layout,
    mixed: Refusal | None,
) -> Decision:
    """A layout that somebody wrote: weighed as it stands, refused when a better one is at hand."""
    total = sum(host.gpus for host in hosts)
    if layout.gpus > total:
        refusal = Refusal(
            "too-few-gpus",
            f"{layout} needs {layout.gpus} GPUs, the hosts have {total}",
            "add hosts, or write `parallel: auto`",
        )
        return Decision("refused", layout, None, None, (), (), (refusal,), ())
    places = place_ranks(layout, hosts)
    names = {place.host for place in places if place.replica == 0}
    shape = _shape(layout, names)
    serving = ask_one(ask, layout).serving
    try:
        found = fit(model, layout, serving, replica_gpus(places, hosts))
    except LayoutError as error:
        refusal = Refusal("layout", str(error), "write `parallel: auto`, or another size")
        return Decision("refused", layout, shape, None, places, (), (refusal,), ())
    refusals: list[Refusal] = []
    if len(names) > 1:
        refusals += _spanning(model, hosts, ask, layout, mixed)
    if not found.fits:
        refusals.append(no_layout_fits(model, hosts, ask, found))
    traffic = _traffic(model, layout, ask, hosts) if len(names) > 1 else None
    tried = (_candidate(found, layout, len({p.host for p in places})),)
    reasons = reasons_for(layout, shape, found, tried=(), traffic=traffic, chosen=False)
    verdict: Literal["fits", "refused"] = "refused" if refusals else "fits"
    return Decision(verdict, layout, shape, found, places, reasons, tuple(refusals), tried, traffic)


def _spanning(
    model: ModelFacts,
    hosts: Sequence[HostFacts],
    ask: Ask,
    layout: Layout,
    mixed: Refusal | None,
) -> Iterator[Refusal]:
    """What speaks against one replica over several hosts."""
    if mixed is not None:
        yield mixed
    if not ask.force_multi_node:
        alone = _auto(model, hosts[:1], replace(ask, layout=None), None)
        if alone.verdict == "fits" and alone.fit is not None and alone.layout is not None:
            yield several_hosts_for_nothing(layout, alone.layout, alone.fit)
    spans = tensor_group_spans_hosts(layout, place_ranks(layout, hosts))
    if spans and not ask.force_tensor_across_hosts:
        yield tensor_across_hosts(model, layout, ask, hosts)
