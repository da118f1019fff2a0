"""All that a run knows of a cluster: description, plan, and what lies on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vllm_cluster.control import archive, model, secrets
from vllm_cluster.control.judge import judge
from vllm_cluster.plan import Plan, make_plan
from vllm_cluster.spec import Cluster, DescriptionError, Problem, load
from vllm_cluster.weights.manifest import Manifest


@dataclass(frozen=True)
class Context:
    """What the steps work from. `secrets` never leaves this process but as a file's content."""

    cluster: Cluster
    plan: Plan
    archive: Path | None
    source: Path
    manifest: Manifest
    secrets: dict[str, str]

    def __repr__(self) -> str:
        return f"Context({self.cluster.file})"


@cache
def context(file: Path) -> Context:
    """Read everything, once a process. Raises DescriptionError with all problems."""
    cluster, refusal = load(file), None
    try:
        cluster = judge(cluster).cluster
    except DescriptionError as error:
        refusal = error  # what lies on this machine is looked at all the same: all errors at once
    image, source = cluster.description.image, cluster.local(cluster.description.model.source)
    path = cluster.local(image.archive) if image.archive else None
    problems = [
        *_ssh_problems(cluster),
        *_archive_problems(cluster, path),
        *_source_problems(cluster, source),
    ]
    if refusal is not None and not problems:
        raise refusal
    if problems:
        raise DescriptionError(file, [*(refusal.problems if refusal else ()), *problems])
    manifest = _manifest(cluster, source)
    image_id = archive.image_id(path) if path else None
    return Context(
        cluster=cluster,
        plan=make_plan(
            cluster.description, image_id=image_id, model_id=manifest.identity[:MODEL_ID_DIGITS]
        ),
        archive=path,
        source=source,
        manifest=manifest,
        secrets=secrets.resolve(cluster),
    )


# Enough to tell any two models apart, short enough for a path that people read.
MODEL_ID_DIGITS = 16


def _ssh_problems(cluster: Cluster) -> Iterator[Problem]:
    ssh = cluster.description.ssh
    for name, value in (("key", ssh.key), ("config_file", ssh.config_file)):
        if value is not None and not cluster.local(value).is_file():
            found = f"{cluster.local(value)}, which is no file"
            yield cluster.problem("ssh", name, found=found, accepted="a file on this machine")


def _archive_problems(cluster: Cluster, path: Path | None) -> Iterator[Problem]:
    if path is None:
        return
    try:
        archive.image_id(path)
    except (ValueError, OSError) as error:
        accepted = "a `docker save` archive on this machine (the lab's: `make image`)"
        yield cluster.problem("image", "archive", found=_reason(path, error), accepted=accepted)


def _source_problems(cluster: Cluster, source: Path) -> Iterator[Problem]:
    accepted = "a directory on this machine with config.json and the weights"
    if not source.is_dir():
        found = f"{source}, which is no directory"
        yield cluster.problem("model", "source", found=found, accepted=accepted)
    elif not (source / "config.json").is_file():
        found = f"{source}, which has no config.json"
        yield cluster.problem("model", "source", found=found, accepted=accepted)


def _manifest(cluster: Cluster, source: Path) -> Manifest:
    try:
        return model.manifest_of(source, cluster.description.model.name)
    except (OSError, ValueError) as error:
        found = f"{source}, which cannot be read whole: {error}"
        accepted = "a directory whose files and links can all be read"
        problem = cluster.problem("model", "source", found=found, accepted=accepted)
        raise DescriptionError(cluster.file, [problem]) from None


def _reason(path: Path, error: Exception) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
