"""All that a run knows of a cluster: description, plan, and what lies on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from vllm_cluster.control import lock, secrets
from vllm_cluster.control import model as model_here
from vllm_cluster.control.judge import judge
from vllm_cluster.control.model_directory import directories, directory
from vllm_cluster.image import archive
from vllm_cluster.plan import Plan, make_plan
from vllm_cluster.plan.weights import UNNAMED, ModelId
from vllm_cluster.spec import Cluster, DescriptionError, Problem, load
from vllm_cluster.weights.manifest import Manifest


@dataclass(frozen=True)
class Context:
    """What the steps work from. `secrets` never leaves this process but as a file's content.

    `source` and `manifest` are of the model on this machine, or `manifest` of one that a host has;
    None where there is none.
    """

    cluster: Cluster
    plan: Plan
    archive: Path | None
    source: Path | None
    manifest: Manifest | None
    secrets: dict[str, str]

    def __repr__(self) -> str:
        return f"Context({self.cluster.file})"


def context(file: Path, *, make_secrets: bool = True) -> Context:
    """Read everything once a process, but for what a run itself finds out: which model it is.

    `make_secrets`: False for who only looks; generated secrets that this machine lacks are then
    absent. Raises DescriptionError with all problems.
    """
    known = _context(file)
    return replace(known, secrets=_secrets(known.cluster, make=make_secrets))


def _context(file: Path) -> Context:
    cluster = _read(file).cluster
    revision = cluster.description.model.revision
    copied = cluster.description.weights.storage == "nvme"
    if revision is None and (_read(file).manifest is not None or copied):
        return _planned(file, None)
    return _planned(file, lock.read(cluster, revision or UNNAMED))


def outline(file: Path) -> Context:
    """Enough to ask hosts what they hold: no secrets, and nothing of this machine's model, of which
    reading 140 GB takes minutes.

    A share's notes are named after the model's content where no revision is named: then all of
    `context`. Raises DescriptionError with all problems.
    """
    cluster = judge(load(file)).cluster
    problems = list(_ssh_problems(cluster))
    if problems:
        raise DescriptionError(file, problems)
    revision = cluster.description.model.revision
    copied = cluster.description.weights.storage == "nvme"
    if not copied and revision is None and any(path.is_dir() for path in directories(cluster)):
        return context(file, make_secrets=False)
    named = revision or UNNAMED
    model = (None if copied and revision is None else lock.read(cluster, named)) or ModelId(named)
    plan = make_plan(cluster.description, model_id=model)
    return Context(cluster, plan, archive=None, source=None, manifest=None, secrets={})


@dataclass(frozen=True)
class _Read:
    """What lies on this machine."""

    cluster: Cluster
    archive: Path | None
    image_id: str | None
    source: Path | None
    manifest: Manifest | None


# By description. Only whole sets: what a look did not find may be made, or copied, later.
_SECRETS: dict[Path, dict[str, str]] = {}


def _secrets(cluster: Cluster, *, make: bool) -> dict[str, str]:
    if cluster.file not in _SECRETS:
        found = secrets.resolve(cluster, make=make)
        if set(found) != set(secrets.described(cluster)):
            return found
        _SECRETS[cluster.file] = found
    return _SECRETS[cluster.file]


@cache
def _planned(file: Path, known: ModelId | None) -> Context:
    read = _read(file)
    model, manifest = known, read.manifest
    if manifest is not None:
        model = ModelId(manifest.revision, manifest.identity, manifest.total_bytes)
        if known is not None:
            lock.refuse_other(read.cluster, known, model)
    elif model is None:
        model = ModelId(read.cluster.description.model.revision or UNNAMED)
    else:
        manifest = model_here.remembered(model.identity)
    plan = make_plan(read.cluster.description, image_id=read.image_id, model_id=model)
    return Context(read.cluster, plan, read.archive, read.source, manifest, secrets={})


@cache
def _read(file: Path) -> _Read:
    cluster, refusal = load(file), None
    try:
        cluster = judge(cluster).cluster
    except DescriptionError as error:
        refusal = error  # what lies on this machine is looked at all the same: all errors at once
    image = cluster.description.image
    path = cluster.local(image.archive) if image.archive else None
    problems = [
        *_ssh_problems(cluster),
        *_archive_problems(cluster, path),
        *_source_problems(cluster),
    ]
    if refusal is not None and not problems:
        raise refusal
    if problems:
        raise DescriptionError(file, [*(refusal.problems if refusal else ()), *problems])
    source = directory(cluster)
    return _Read(
        cluster=cluster,
        archive=path,
        image_id=archive.image_id(path) if path else None,
        source=source,
        manifest=_manifest(cluster, source) if source else None,
    )


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


def _source_problems(cluster: Cluster) -> Iterator[Problem]:
    """A directory of this machine must be a model; it may be absent where there are others."""
    model, accepted = cluster.description.model, "a directory on this machine with config.json"
    key = "source" if model.source is not None else "sources"
    named = list(directories(cluster))
    try:
        source = directory(cluster)
    except ValueError as error:
        accepted = "model.revision as one of the cache's revisions"
        yield cluster.problem("model", key, found=str(error), accepted=accepted)
        return
    if source is None and len(named) == len(model.ordered) and named:
        found = f"{named[0]}, which is no directory"
        yield cluster.problem("model", key, found=found, accepted=f"{accepted} and the weights")
    elif source is not None and not (source / "config.json").is_file():
        found = f"{source}, which has no config.json"
        yield cluster.problem("model", key, found=found, accepted=f"{accepted} and the weights")


def _manifest(cluster: Cluster, source: Path) -> Manifest:
    model = cluster.description.model
    try:
        return model_here.manifest_of(source, model.directory, model.revision)
    except (OSError, ValueError) as error:
        found = f"{source}, which cannot be read whole: {error}"
        accepted = "a directory whose files and links can all be read"
        problem = cluster.problem("model", "source", found=found, accepted=accepted)
        raise DescriptionError(cluster.file, [problem]) from None


def _reason(path: Path, error: Exception) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
