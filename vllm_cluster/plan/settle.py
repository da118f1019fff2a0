"""`parallel: auto` into sizes, by the model's facts and the hosts' GPUs."""

from __future__ import annotations

from vllm_cluster.plan.containers import user_arguments
from vllm_cluster.plan.decide import decide
from vllm_cluster.plan.decision import Ask, Decision
from vllm_cluster.plan.flags import table
from vllm_cluster.plan.memory.facts import (
    GpuFacts,
    HostFacts,
    Layout,
    ModelFacts,
    Platform,
    Serving,
)
from vllm_cluster.plan.memory.gpus import gpu_by_name
from vllm_cluster.spec.model import Description, Parallel

PARTITION = "VLLM_PP_LAYER_PARTITION"


def weigh(description: Description, model: ModelFacts) -> Decision:
    """What fits, and why: `parallel: auto` decided, or the sizes of the description judged."""
    parallel = description.parallel
    layout, several, spans = None, False, False
    if isinstance(parallel, Parallel):
        layout = Layout(
            parallel.tensor, parallel.pipeline, parallel.replicas, partition(description)
        )
        # Who says that one tensor group shall span hosts has said that several are meant.
        spans = parallel.tensor_across_hosts == "deliberate"
        several = spans or parallel.several_hosts == "deliberate"
    ask = Ask(
        serving=serving(description),
        layout=layout,
        force_multi_node=several,
        force_tensor_across_hosts=spans,
    )
    return decide(model, hosts(description), ask)


def settled(description: Description, decision: Decision) -> Description:
    """`description` with the sizes, hosts and GPUs that `decision` uses."""
    layout = decision.layout
    if isinstance(description.parallel, Parallel) or layout is None:
        return description
    used: dict[str, int] = {}
    for place in decision.places:
        used[place.host] = used.get(place.host, 0) + 1
    kept = {
        name: host.model_copy(update={"gpus": used[name]})
        for name, host in description.hosts.items()
        if name in used
    }
    workers = None if description.workers is None else [w for w in description.workers if w in used]
    parallel = Parallel(
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        replicas=layout.data,
        several_hosts="deliberate" if decision.needs_ray else "if-needed",
    )
    changed = {"parallel": parallel, "hosts": kept, "workers": workers}
    return description.model_copy(update=changed)


def hosts(description: Description) -> list[HostFacts]:
    """The hosts as the memory plan sees them, the head first.

    Raises KeyError where the GPU's name is unknown and no memory is given.
    """
    gpu, link = gpu_facts(description), description.network.link_gbit_s
    order = sorted(description.hosts, key=lambda name: name != description.head)
    return [HostFacts(name, description.hosts[name].gpus, gpu, link) for name in order]


def gpu_facts(description: Description) -> GpuFacts:
    """The GPU by its name, else by its declared memory, of which CUDA has about 98.5 %."""
    gpu = description.gpu
    try:
        return gpu_by_name(gpu.model)
    except KeyError:
        if gpu.memory is None:
            raise
    return GpuFacts(gpu.model or "GPU", int(gpu.memory * 0.985))


def serving(description: Description) -> Serving:
    """The arguments of `vllm serve` that decide about memory, as that version reads them."""
    words = [word for words in user_arguments(description).values() for word in words]
    given = table("vllm", description.image.vllm).values(words, words=0)
    known = {
        "max_model_len": "max_model_len",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "kv_cache_dtype": "kv_cache_dtype",
        "dtype": "dtype",
        "block_size": "block_size",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "max_num_seqs": "max_num_seqs",
        "enforce_eager": "enforce_eager",
        "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
        "async_scheduling": "async_scheduling",
        "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    }
    values = {name: given[dest] for name, dest in known.items() if given.get(dest) is not None}
    platform: Platform = "cpu" if description.gpu.kind == "cpu" else "cuda"
    return Serving(full_requests=description.serve.full_requests, platform=platform, **values)


def partition(description: Description) -> tuple[int, ...] | None:
    """VLLM_PP_LAYER_PARTITION, as vllm/distributed/utils.py reads it."""
    value = description.serve.env.get(PARTITION)
    if value is None:
        return None
    try:
        return tuple(int(part) for part in str(value).split(","))
    except ValueError:
        return None
