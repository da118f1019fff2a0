"""The plan for people."""

from __future__ import annotations

from vllm_cluster.control.judge import Judged
from vllm_cluster.plan import Plan
from vllm_cluster.plan.weights import load_seconds


def plan_text(judged: Judged, plan: Plan, picture: str, model_bytes: int) -> str:
    """Everything, the decision first. `picture` is the drawn rank map, or empty."""
    parts = [_head(plan), _weights(plan, model_bytes), _reasons(judged)]
    parts += [picture.splitlines()] if picture else [rank_rows(plan)]
    parts += [_ports(plan), _commands(plan)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(plan: Plan) -> list[str]:
    hosts = len(plan.hosts)
    copies = f" x {plan.replicas} replicas" if plan.replicas > 1 else ""
    return [
        f"{plan.cluster}: {plan.model_name} on {hosts} {'host' if hosts == 1 else 'hosts'}, "
        f"{plan.gpus} GPUs, TP={plan.tensor} x PP={plan.pipeline}{copies}, executor {plan.backend}",
        f"vLLM {plan.vllm_version}, Ray {plan.ray_version}, image {plan.image}",
        f"API http://{plan.hosts[plan.head].address}:{plan.api_port}/v1",
    ]


_STORAGE = {
    "nvme": "a verified copy on every host",
    "nfs": "read by every host over NFS",
    "shared": "read by every host from a file system of yours",
}


def _weights(plan: Plan, model_bytes: int) -> list[str]:
    weights = plan.weights
    lines = [f"weights {weights.path}: {_STORAGE[weights.storage]}"]
    if weights.copied:
        limit = f", at most {weights.limit_mbit:g} Mbit/s a host" if weights.limit_mbit else ""
        lines[0] += f", {weights.keep} revisions kept{limit}"
    lines += [f"  from {text}" for text in weights.sources]
    if weights.identity:
        lines.append(f"  identity {weights.identity}")
    if weights.storage == "nfs":
        lines.append(f"  {_load(plan, model_bytes)}")
    return lines


def nfs_load_s(plan: Plan, model_bytes: int) -> tuple[float, float] | None:
    """Least and most seconds that loading over NFS takes; None where it is not, or not known."""
    size, link = model_bytes or plan.weights.total_bytes, plan.weights.link_gbit_s
    if plan.weights.storage != "nfs" or not size or not link:
        return None
    return load_seconds(size, len(plan.hosts), link)


def _load(plan: Plan, model_bytes: int) -> str:
    times = nfs_load_s(plan, model_bytes)
    if times is None:
        return "how long every start loads over NFS: say network.link_gbit_s, and name the model"
    least, most = times
    size = (model_bytes or plan.weights.total_bytes) / 2**30
    return (
        f"every start loads {size:.1f} GiB over NFS: {least:.0f} s at {plan.weights.link_gbit_s:g} "
        f"Gbit/s when each host reads its share alone, {most:.0f} s when all "
        f"{len(plan.hosts)} read the whole"
    )


def _reasons(judged: Judged) -> list[str]:
    if judged.decision is None:
        return [f"memory: not weighed, since {judged.unweighed}"]
    return list(judged.decision.reasons)


def rank_rows(plan: Plan) -> list[str]:
    """The rank map, a row a process."""
    rows = ["rank  pp  tp  host          gpu"]
    for r in plan.ranks:
        rows.append(f"{r.rank:>4}  {r.pp_rank:>2}  {r.tp_rank:>2}  {r.host:<12}  {r.gpu:>3}")
    return rows


def _ports(plan: Plan) -> list[str]:
    rows = [f"{'port':<11}  {'what':<24}  {'where':<10}  {'binds':<8}  reached by"]
    for use in plan.ports:
        port = str(use.first) if use.first == use.last else f"{use.first}-{use.last}"
        rows.append(f"{port:<11}  {use.name:<24}  {use.where:<10}  {use.bind:<8}  {use.allowed}")
    return rows


def _commands(plan: Plan) -> list[str]:
    rows: list[str] = []
    for host in plan.hosts.values():
        for unit, container in host.containers.items():
            rows.append(f"{host.name} ({host.address}), unit {unit}.service:")
            rows += [f"    {word}" for word in container.run()]
    rows.append("environment of every container, and VLLM_HOST_IP and the network card's own:")
    rows += [f"    {name}={value}" for name, value in sorted(plan.environment.items())]
    return rows
