"""A description judged with the model that it names: sizes settled, arguments checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.control.model_directory import directories, directory
from vllm_cluster.plan import fixed_cache
from vllm_cluster.plan.decision import Decision
from vllm_cluster.plan.memory.facts import ModelFacts, UnsupportedModelError
from vllm_cluster.plan.settle import settled, weigh
from vllm_cluster.plan.sizes import concrete
from vllm_cluster.plan.verify import (
    argument_problems,
    combination_problems,
    version_problems,
)
from vllm_cluster.spec import Cluster, DescriptionError, Problem, RefusedError
from vllm_cluster.spec.model import Parallel


@dataclass(frozen=True)
class Judged:
    """A settled description; `decision` with the numbers, or `unweighed`, why there are none."""

    cluster: Cluster
    decision: Decision | None
    unweighed: str


def judge(cluster: Cluster, facts: ModelFacts | None = None) -> Judged:
    """Settle `parallel: auto` and check what vLLM and Ray will be told.

    The model's facts are `facts`, or those of `model.source` where that is a directory here.
    Raises DescriptionError for arguments and versions that do not exist and for a KV cache that
    holds no request, RefusedError for what does not fit and for combinations that vLLM refuses.
    """
    _check_versions(cluster)
    decision, unweighed = _weighed(cluster, facts)
    if decision is not None:
        cluster = cluster.with_description(settled(cluster.description, decision))
    if not isinstance(cluster.description.parallel, Parallel):
        _refuse_unsettled(cluster, decision, unweighed)
    _refuse_tensor_across_hosts(cluster, decision)
    _check_arguments(cluster)
    _check_fixed_cache(cluster, facts)
    refused = combination_problems(cluster, _config(cluster))
    if decision is not None:
        refused += _weighed_problems(cluster, decision)
    if refused:
        raise RefusedError(cluster.file, refused)
    return Judged(cluster, decision, unweighed)


def check_arguments(cluster: Cluster) -> None:
    """Check versions and arguments alone. Raises DescriptionError for what does not exist.

    Arguments follow from sizes too: they are checked where `parallel` names them.
    """
    _check_versions(cluster)
    if isinstance(cluster.description.parallel, Parallel):
        _check_arguments(cluster)


def _check_versions(cluster: Cluster) -> None:
    problems = version_problems(cluster)
    if problems:
        raise DescriptionError(cluster.file, problems)


def _check_arguments(cluster: Cluster) -> None:
    problems = argument_problems(cluster)
    if problems:
        raise DescriptionError(cluster.file, problems)


def _check_fixed_cache(cluster: Cluster, facts: ModelFacts | None) -> None:
    """A cache that holds not one request of full length, where there is no GPU memory to weigh."""
    size = fixed_cache.fixed(cluster.description)
    if size is None:
        return
    model = facts or _facts(cluster)[0]
    accepted = fixed_cache.missing(cluster.description, model) if model is not None else ""
    if accepted:
        key = ("serve", "args", "kv-cache-memory-bytes")
        raise DescriptionError(
            cluster.file, [cluster.problem(*key, found=str(size), accepted=accepted)]
        )


def _weighed(cluster: Cluster, facts: ModelFacts | None) -> tuple[Decision | None, str]:
    """The decision, or why nothing could be weighed."""
    if cluster.description.gpu.kind == "cpu":
        return None, "gpu.kind is cpu: there is no GPU memory to weigh"
    asked = facts is not None  # a person wants to see it weighed: not being able to is an error
    if facts is None:
        facts, why = _facts(cluster)
        if facts is None:
            return None, why
    try:
        return weigh(cluster.description, facts), ""
    except KeyError as error:
        if asked:
            found, accepted = str(error.args[0]), "a card by its name; or say gpu.memory"
            problem = cluster.problem("gpu", "model", found=found, accepted=accepted)
            raise DescriptionError(cluster.file, [problem]) from None
        return None, f"{error.args[0]}; or say gpu.memory"


def _facts(cluster: Cluster) -> tuple[ModelFacts | None, str]:
    """What the model on this machine says of itself, or why there is nothing."""
    folder, missing = _folder(cluster)
    if folder is None:
        return None, missing
    try:
        return _read(folder), ""
    except (_model_read_error(), UnsupportedModelError) as error:
        return None, str(error)


def _folder(cluster: Cluster) -> tuple[Path | None, str]:
    """Where the model lies on this machine, or why it does not."""
    try:
        folder = directory(cluster)
    except ValueError as error:
        return None, str(error)
    named = list(directories(cluster))
    if folder is not None or named:
        return folder, "" if folder else f"{named[0]} is no directory here"
    return None, "the model is not on this machine; `--model DIRECTORY` or `--hub` weighs it"


def _read(folder: Path) -> ModelFacts:
    from vllm_cluster.model.local import read_model  # noqa: PLC0415  only where a model is here

    return read_model(folder)


def _model_read_error() -> type[Exception]:
    from vllm_cluster.model.safetensors import ModelReadError  # noqa: PLC0415  as above

    return ModelReadError


def _refuse_unsettled(cluster: Cluster, decision: Decision | None, unweighed: str) -> None:
    """`auto` needs a decision: say why there is none, or why nothing fits."""
    if decision is None:
        accepted = "tensor and pipeline in numbers, or a model.source on this machine to weigh"
        found = f"auto, but {unweighed}"
        raise RefusedError(
            cluster.file, [cluster.problem("parallel", found=found, accepted=accepted)]
        )
    raise RefusedError(cluster.file, _weighed_problems(cluster, decision))


def _weighed_problems(cluster: Cluster, decision: Decision) -> list[Problem]:
    """What the memory plan refuses, at the key that it is about."""
    return [
        cluster.problem("parallel", found=each.reason, accepted=each.fix)
        for each in decision.refusals
    ]


def _refuse_tensor_across_hosts(cluster: Cluster, decision: Decision | None) -> None:
    """TP larger than a host: with the link's numbers where the model is known."""
    parallel, hosts = concrete(cluster.description), cluster.description.hosts.values()
    most = min(host.gpus for host in hosts)
    if parallel.tensor <= most or parallel.tensor_across_hosts == "deliberate":
        return
    found = f"{parallel.tensor}, more than the {most} GPUs of a host"
    accepted = f"at most {most}: TP stays in a host; or `tensor_across_hosts: deliberate`"
    problems = [cluster.problem("parallel", "tensor", found=found, accepted=accepted)]
    if decision is not None:
        problems += _weighed_problems(cluster, decision)
    raise RefusedError(cluster.file, problems)


def _config(cluster: Cluster) -> dict[str, Any] | None:
    """The model's config.json, where it is here and is one."""
    folder, _ = _folder(cluster)
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None
