"""The sentences of a decision, each with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_cluster.plan.decision import Ask, Candidate, Refusal, Shape
from vllm_cluster.plan.memory.assume import assumptions
from vllm_cluster.plan.memory.facts import HostFacts, Layout, ModelFacts
from vllm_cluster.plan.memory.fit import Fit
from vllm_cluster.plan.memory.search import fewest_hosts, longest_context, try_fit
from vllm_cluster.plan.memory.text import count, gib, kib
from vllm_cluster.plan.memory.traffic import Traffic, pipeline_traffic, tensor_traffic

#: What the mission of the project asks to be left free on every GPU.
WANTED_FREE_SHARE = 0.08


def reasons_for(
    layout: Layout,
    shape: Shape,
    found: Fit,
    *,
    tried: Sequence[Candidate],
    traffic: Traffic | None,
    chosen: bool,
) -> tuple[str, ...]:
    """Why this layout: what was too small, what lies where, what is left.

    `chosen` tells a layout found here from one that somebody asked for.
    """
    others = [c for c in tried if c.layout != layout]
    said = [f"{c.layout} on {_hosts(c.hosts)}: {_looked_at(c)}." for c in others[-3:]]
    said.append(_chosen(layout, shape, found) if chosen else f"{layout}, as asked.")
    said.append(_weights(found.model, found))
    said.append(_cache(found, layout))
    said.append(_margin(found))
    if traffic is not None:
        said.append(_link(traffic))
    said += [f"Assumed: {assumption}." for assumption in assumptions(found.model)]
    return tuple(said)


def _looked_at(candidate: Candidate) -> str:
    return f"would fit, but {candidate.note}" if candidate.fits else candidate.note


def _hosts(number: int) -> str:
    return "one host" if number == 1 else f"{number} hosts"


def _chosen(layout: Layout, shape: Shape, found: Fit) -> str:
    gpu = found.ranks[0].gpu.name
    if shape == "one gpu":
        return f"One {gpu} holds the model: nothing to divide, no Ray, nothing on the network."
    if shape == "one host":
        return f"{layout} in one host: vLLM's mp backend, no Ray, traffic stays on the host."
    if shape == "replicas":
        return (
            f"{layout}: every replica is a server of its own on one host, so no token waits for "
            "the network; requests are spread over them."
        )
    return (
        f"{layout} over hosts: tensor parallelism inside each host, one pipeline boundary between "
        "neighbours, because one host cannot hold what is asked."
    )


def _weights(model: ModelFacts, found: Fit) -> str:
    per_stage = dict.fromkeys(
        (r.weights.first_layer, r.weights.past_layer, r.weights.total_bytes) for r in found.ranks
    )
    parts = [f"layers {a}-{b - 1}: {gib(size)}" for a, b, size in per_stage]
    source = "headers" if model.tensors_from == "headers" else "config"
    return (
        f"Weights: {gib(model.stored_bytes)} in the checkpoint (from its {source}), "
        f"on each GPU {'; '.join(parts[:8])}{'; …' if len(parts) > 8 else ''}."
    )


def _cache(found: Fit, layout: Layout) -> str:
    if not found.blocks_per_request:
        return "No KV cache: the model looks at a text once and keeps nothing."
    smallest = min(found.ranks, key=lambda r: r.kv_blocks)
    copies = f" in each of {layout.data} replicas" if layout.data > 1 else ""
    return (
        f"KV cache: {kib(found.kv_token_bytes)} a token and GPU; the smallest rank is "
        f"{smallest.rank} with {gib(smallest.kv_available_bytes)} = {count(found.kv_blocks)} "
        f"blocks = {count(found.kv_tokens)} tokens, {found.concurrency:.2f} requests of "
        f"{count(found.max_model_len)} tokens{copies}."
    )


def _margin(found: Fit) -> str:
    rank = min(found.ranks, key=lambda r: r.free_bytes)
    share = 1 - found.serving.gpu_memory_utilization
    said = (
        f"Margin: vLLM may use {found.serving.gpu_memory_utilization:.2f} of "
        f"{gib(rank.gpu.memory_bytes)}; beside it, after {gib(rank.allowance.outside_bytes)} for "
        f"the CUDA context and NCCL, {gib(found.margin_bytes)} stay free on the tightest GPU."
    )
    if share < WANTED_FREE_SHARE - 1e-9:
        said += f" That is less than the {WANTED_FREE_SHARE:.0%} that should be kept free."
    return said


def _link(traffic: Traffic) -> str:
    said = f"Between hosts: {kib(traffic.bytes_per_token)} a token ({traffic.kind})"
    if traffic.tokens_per_s is None:
        return said + "; the link's speed is not given."
    return said + (
        f"; a link of {traffic.link_gbit_s:g} Gbit/s carries {count(traffic.tokens_per_s)} "
        "tokens/s of prefill and decode together."
    )


def several_hosts_for_nothing(asked: Layout, alone: Layout, found: Fit) -> Refusal:
    """One host does it: Ray costs time and the network brings nothing."""
    per_gpu = max(r.weights.total_bytes + r.allowance.inside_bytes for r in found.ranks)
    return Refusal(
        "several-hosts-for-nothing",
        f"{asked} spans hosts, but one host holds the model as {alone}: {gib(per_gpu)} of weights "
        f"and allowance per GPU, KV cache for {count(found.kv_tokens)} tokens = "
        f"{found.concurrency:.1f} requests of {count(found.max_model_len)}. Over hosts every "
        "request pays 1 to 3 ms for nothing",
        f"write `parallel: auto`, or tensor {alone.tensor}, pipeline {alone.pipeline} on one host; "
        "for more throughput run a replica per host; if several hosts are meant, say "
        "`several_hosts: deliberate` under parallel",
    )


def tensor_across_hosts(
    model: ModelFacts, layout: Layout, ask: Ask, hosts: Sequence[HostFacts]
) -> Refusal:
    """Tensor parallelism over the network: what the link would have to carry, and does."""
    link = min((h.link_gbit_s for h in hosts if h.link_gbit_s is not None), default=None)
    tensor = tensor_traffic(model, layout, ask.serving, link)
    gpus = hosts[0].gpus
    stages = max(2, layout.gpus_per_replica // gpus)
    pipeline = pipeline_traffic(model, Layout(gpus, stages), ask.serving, link)
    reason = (
        f"TP={layout.tensor} spans hosts: {tensor.collectives_per_step} all-reduces a step send "
        f"{kib(tensor.bytes_per_token)} a token through each host's link, pipeline stages "
        f"{kib(pipeline.bytes_per_token)}"
    )
    if tensor.tokens_per_s is not None and pipeline.tokens_per_s is not None:
        reason += (
            f"; {link:g} Gbit/s carry {count(tensor.tokens_per_s)} tokens/s that way and "
            f"{count(pipeline.tokens_per_s)} with stages"
        )
    latency_s = tensor.step_latency_s
    if ask.rtt_us is not None:
        latency_s = tensor.collectives_per_step * max(ask.rtt_us * 1e-6, 0.0)
    reason += f"; their latency alone adds {latency_s * 1e3:.1f} ms to every generated token"
    return Refusal(
        "tensor-across-hosts",
        reason,
        f"write tensor {gpus}, pipeline {stages}: TP inside each host, PP between them; if it "
        "is meant (InfiniBand, or a measurement), say `tensor_across_hosts: deliberate` under "
        "parallel",
    )


def no_layout_fits(
    model: ModelFacts, hosts: Sequence[HostFacts], ask: Ask, best: Fit | None
) -> Refusal:
    """Nothing fits: the nearest layout, what is missing, and what would do."""
    head = hosts[0]
    if best is None:
        return Refusal(
            "no-valid-layout",
            f"no tensor-parallel size up to {head.gpus} divides {model.query_heads} attention "
            f"heads, {model.kv_heads} key-value heads and the widths of {model.name}",
            "give the host another number of GPUs",
        )
    reason = f"{best.layout}: " + "; ".join(best.problems)
    return Refusal("does-not-fit", reason, "; ".join(_ways_out(model, head, ask, best)))


def _ways_out(model: ModelFacts, head: HostFacts, ask: Ask, best: Fit) -> list[str]:
    gpus = [rank.gpu for rank in best.ranks]
    ways = []
    one = replace(best.serving, full_requests=1.0)
    context = longest_context(model, best.layout, one, gpus)
    if 0 < context < best.max_model_len:
        ways.append(f"max_model_len {context} fits as {best.layout}")
    elif context and best.concurrency < (best.serving.full_requests or 1.0):
        ways.append(f"{best.concurrency:.1f} requests at once fit as {best.layout}")
    # The 8-bit cache needs a GPU that computes in 8 bits to be worth its rounding.
    modern = min(gpu.compute_capability for gpu in gpus) >= (8, 9)
    if best.serving.kv_cache_dtype == "auto" and context and modern:
        small = replace(best.serving, kv_cache_dtype="fp8")
        found = try_fit(model, best.layout, small, gpus)
        if found is not None and found.fits:
            ways.append(f"kv_cache_dtype fp8 makes it fit ({found.concurrency:.1f} requests)")
    more = fewest_hosts(model, ask.serving, head.gpu, head.gpus)
    if more is not None and more.gpus_per_replica > best.layout.gpus_per_replica:
        hosts = -(-more.gpus_per_replica // head.gpus)
        ways.append(f"{hosts} hosts of {head.gpus} x {head.gpu.name} hold it as {more}")
    return ways or ["use GPUs with more memory, or a quantised checkpoint"]
