"""The arguments of a plan against the versions that will read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_cluster.plan.containers import serve_arguments, user_arguments
from vllm_cluster.plan.flags import Tool, UnknownVersionError, table, versions
from vllm_cluster.plan.make import make_plan
from vllm_cluster.plan.memory.gpus import gpu_by_name
from vllm_cluster.plan.refuse import ServeRequest, refusals
from vllm_cluster.plan.settle import gpu_facts
from vllm_cluster.plan.sizes import uses_ray
from vllm_cluster.spec.model import Cluster, Description
from vllm_cluster.spec.problems import Problem


def version_problems(cluster: Cluster) -> list[Problem]:
    """Versions of vLLM or Ray whose arguments are not known here."""
    return [*_versions(cluster), *_memory(cluster)]


def argument_problems(cluster: Cluster) -> list[Problem]:
    """Arguments that the versions of the description do not take; needs settled sizes."""
    return [*_vllm(cluster), *_ray(cluster)]


def combination_problems(cluster: Cluster, model: Mapping[str, Any] | None = None) -> list[Problem]:
    """Combinations that vLLM would refuse at its start, each with the file that says so.

    `model` is the model's config.json, where it is here.
    """
    found = []
    for refusal in refusals(_request(cluster.description, model)):
        accepted = f"{refusal.fix} ({refusal.source})"
        found.append(cluster.problem("serve", found=refusal.sentence, accepted=accepted))
    return found


def _versions(cluster: Cluster) -> Iterator[Problem]:
    image = cluster.description.image
    pinned: tuple[tuple[Tool, str], ...] = (("vllm", image.vllm), ("ray", image.ray))
    for tool, version in pinned:
        try:
            table(tool, version)
        except UnknownVersionError:
            known = ", ".join(versions(tool))
            accepted = f"{known}; or add it: make flags {tool.upper()}={version}"
            yield cluster.problem(
                "image", tool, found=f"{version}, not known here", accepted=accepted
            )


def _memory(cluster: Cluster) -> Iterator[Problem]:
    """A declared memory that the named GPU does not have: one of the two is wrong."""
    gpu = cluster.description.gpu
    if gpu.memory is None or not gpu.model:
        return
    try:
        known = gpu_by_name(gpu.model)
    except KeyError:
        return
    if abs(gpu.memory - known.memory_bytes) > 0.1 * known.memory_bytes:
        found = f"{gpu.memory / 2**30:.0f} GiB for {gpu.model}"
        accepted = f"about {known.memory_bytes / 2**30:.0f}GiB, or another gpu.model"
        yield cluster.problem("gpu", "memory", found=found, accepted=accepted)


def _vllm(cluster: Cluster) -> Iterator[Problem]:
    description = cluster.description
    ray = uses_ray(description)
    words = serve_arguments(description, "/model", ray=ray)
    keys = _keys(description, len(words))
    for problem in table("vllm", description.image.vllm).check(words):
        near = f"{', '.join(problem.nearest)}; " if problem.nearest else ""
        accepted = f"{near}the arguments of vLLM {description.image.vllm}"
        yield cluster.problem(*keys[problem.index], found=problem.sentence, accepted=accepted)


def _keys(description: Description, count: int) -> list[tuple[str, ...]]:
    """The key behind each word: those of the user stand last."""
    keys: list[tuple[str, ...]] = []
    for name, words in user_arguments(description).items():
        keys += [("serve", "args", name)] * len(words)
    return [("image", "vllm")] * (count - len(keys)) + keys


def _ray(cluster: Cluster) -> Iterator[Problem]:
    """The head's command, and one worker's: another worker's differs by its address alone."""
    version = cluster.description.image.ray
    units = {
        unit: container
        for host in make_plan(cluster.description).hosts.values()
        for unit, container in host.containers.items()
        if unit.startswith("ray-")
    }
    for container in units.values():
        for problem in table("ray", version).check(container.command[1:]):
            yield cluster.problem(
                "image", "ray", found=problem.sentence, accepted="a version that takes it"
            )


def _request(description: Description, model: Mapping[str, Any] | None) -> ServeRequest:
    ray = uses_ray(description)
    capability = None
    if description.gpu.kind == "nvidia" and description.gpu.model:
        try:
            capability = gpu_facts(description).compute_capability
        except KeyError:
            capability = None
    return ServeRequest.from_command(
        description.image.vllm,
        serve_arguments(description, "/model", ray=ray),
        hosts=len(description.hosts) if ray else 1,
        gpus_per_host=min(host.gpus for host in description.hosts.values()),
        model=model,
        compute_capability=capability,
        environment={name: str(value) for name, value in description.serve.env.items()},
    )
