"""From a checked description to the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vllm_cluster.plan import containers, environment
from vllm_cluster.plan.image import local_tag
from vllm_cluster.plan.model import Container, HostPlan, Plan, Rank
from vllm_cluster.plan.ports import allowed, port_uses
from vllm_cluster.plan.ranks import rank_map
from vllm_cluster.plan.sizes import concrete, uses_ray
from vllm_cluster.plan.storage import host_storage
from vllm_cluster.plan.weights import ModelId, weights_plan
from vllm_cluster.spec.model import Description, Parallel


def make_plan(
    description: Description, *, image_id: str | None = None, model_id: ModelId | None = None
) -> Plan:
    """Everything that follows from `description`. No I/O.

    `image_id` is the ID of the image in `image.archive`, `model_id` which model it is: without
    them (nothing is read yet) the plan shows the reference and the bare directory instead.
    """
    parallel = concrete(description)
    ray = uses_ray(description)
    image = image_id or local_tag(description.image.reference)
    weights = weights_plan(description, model_id)
    addresses = tuple(str(host.address) for host in description.hosts.values())
    common = _Common(image, weights.path, addresses, ray)
    order = [description.head, *(name for name in description.hosts if name != description.head)]
    gpus = {name: description.hosts[name].gpus for name in order}
    return Plan(
        cluster=description.cluster,
        backend="ray" if ray else "mp",
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        replicas=parallel.replicas,
        head=description.head,
        hosts={name: _host(description, name, common) for name in order},
        ranks=_ranks(parallel, gpus),
        ports=port_uses(description, ray=ray),
        image=image,
        image_pull=None if description.image.archive else description.image.reference,
        vllm_version=description.image.vllm,
        ray_version=description.image.ray,
        accelerator=description.gpu.kind,
        model_name=description.model.name,
        weights=weights,
        shm_bytes=description.memory.shm,
        api_port=description.serve.port,
        api_key=description.secrets.api_key != "none",
        start_timeout_s=description.serve.start_timeout_s,
        shutdown_timeout_s=description.serve.shutdown_timeout_s,
        hang_timeout_s=description.serve.hang_timeout_s,
        drain_timeout_s=description.ray.drain_timeout_s,
        gcs_address=f"{description.hosts[description.head].address}:{description.ports.gcs}",
        environment=environment.shared(description) | (environment.ray(description) if ray else {}),
    )


def _ranks(parallel: Parallel, gpus: dict[str, int]) -> tuple[Rank, ...]:
    if parallel.replicas == 1:
        spans = parallel.tensor_across_hosts == "deliberate"
        return rank_map(parallel.tensor, gpus, spans=spans)
    return tuple(
        replace(rank, replica=replica)
        for replica, (host, count) in enumerate(gpus.items())
        for rank in rank_map(parallel.tensor, {host: count})
    )


@dataclass(frozen=True)
class _Common:
    """What is the same for every host."""

    image: str
    model_path: str
    addresses: tuple[str, ...]
    ray: bool


def _host(description: Description, name: str, common: _Common) -> HostPlan:
    image, ray = common.image, common.ray
    host = description.hosts[name]
    head = name == description.head
    made: dict[str, Container] = {}
    if ray and head:
        made["ray-head"] = containers.ray_head(description, image)
    if ray and not head:
        made["ray-worker"] = containers.ray_worker(description, host, image)
    serves = head or concrete(description).replicas > 1
    if serves:
        made["vllm"] = containers.vllm(description, image, common.model_path, ray=ray)
    return HostPlan(
        name=name,
        role="head" if head else "worker",
        address=str(host.address),
        ssh=host.ssh or str(host.address),
        gpus=host.gpus,
        interface=host.interface,
        units=tuple(made),
        containers=made,
        allow=allowed(description, common.addresses, head=serves),
        storage=host_storage(description, name),
    )
