"""What of the model's sources and storage only shows against the rest of the description."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_cluster.spec.source import Path_
from vllm_cluster.spec.weights_model import ModelSource

if TYPE_CHECKING:
    from vllm_cluster.spec.checks import Parts

Finding = tuple[Path_, str, str]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def one_way_to_the_model(parts: Parts) -> Iterator[Finding]:
    """Either the short form or the list; with a copy on every host one of them."""
    if parts.model is None:
        return
    model = parts.model
    if model.source is not None and model.sources is not None:
        yield ("model", "sources"), "sources beside source", "one of them: source is short for one"
    elif not model.ordered and parts.weights is not None and parts.weights.storage == "nvme":
        accepted = "a directory on this machine with the model; or model.sources"
        yield ("model", "source"), "nothing (the key is missing)", accepted


def sources_are_whole(parts: Parts) -> Iterator[Finding]:
    """Each source is of one kind and has what that kind needs."""
    for index, source in enumerate((parts.model.sources or ()) if parts.model else ()):
        place: Path_ = ("model", "sources", index)
        kinds = source.kinds
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none of them"
            yield place, found, "exactly one of here, hub, host, nfs"
        elif source.host is not None and source.directory is None:
            yield (
                (*place, "directory"),
                "nothing (the key is missing)",
                (f"the absolute path of the model on {source.host}"),
            )
        elif source.host is None and source.directory is not None:
            found = f"directory beside {kinds[0]}"
            yield (*place, "directory"), found, "directory beside host alone"
        elif source.endpoint is not None and source.hub is None:
            yield (*place, "endpoint"), f"endpoint beside {kinds[0]}", "endpoint beside hub alone"
        else:
            yield from _known_places(parts, place, source)


def _known_places(parts: Parts, place: Path_, source: ModelSource) -> Iterator[Finding]:
    if source.host is not None and parts.hosts_named and source.host not in parts.hosts_named:
        known = ", ".join(sorted(parts.hosts_named))
        yield (*place, "host"), f"{source.host!r}, which is not under hosts", f"one of {known}"
    if source.nfs is not None and parts.storage is not None:
        mounts = parts.storage.nfs
        if not any(beneath(source.nfs, where) for where in mounts):
            known = ", ".join(sorted(mounts)) or "there is none"
            accepted = f"a directory beneath a mount point of storage.nfs ({known})"
            yield (*place, "nfs"), source.nfs, accepted


def revision_is_pinned(parts: Parts) -> Iterator[Finding]:
    """A branch is another model tomorrow, and files that only a host sees need a name."""
    if parts.model is None:
        return
    model = parts.model
    kinds = {kind for source in model.ordered for kind in source.kinds}
    found = model.revision or "nothing (the key is missing)"
    if "hub" in kinds and not _COMMIT.fullmatch(model.revision or ""):
        accepted = "the commit of the hub's repository, 40 hex digits: a branch or tag can move"
        yield ("model", "revision"), found, accepted
    elif kinds & {"host", "nfs"} and model.revision is None:
        accepted = "a label for what lies there, such as v1; for a hub's cache the commit"
        yield ("model", "revision"), found, accepted


def model_has_a_place(parts: Parts) -> Iterator[Finding]:
    """Copies lie at ORG--NAME/REVISION, so the model's directory is a name there."""
    if parts.model is None or parts.weights is None or parts.weights.storage != "nvme":
        return
    if not is_model_name(parts.model.directory):
        accepted = "NAME or ORG/NAME of letters, digits, '.', '_', '-', without '--'"
        yield ("model", "directory"), repr(parts.model.directory), accepted


def is_model_name(name: str) -> bool:
    """Whether copies can carry that name (weights.manifest.slug_of)."""
    return "--" not in name and _NAME.fullmatch(name) is not None


def storage_is_where_it_says(parts: Parts) -> Iterator[Finding]:
    """Copies on a share would be written over by every host; `nfs` needs the share."""
    if parts.weights is None or parts.storage is None:
        return
    weights = parts.weights
    over = [where for where in parts.storage.nfs if beneath(weights.directory, where)]
    where = max(over, key=len, default=None)
    if weights.storage == "nvme" and where is not None:
        found = f"{weights.directory}, on the NFS share {where}, with weights.storage: nvme"
        accepted = "a directory on a local disk, or weights.storage: nfs"
        yield ("weights", "directory"), found, accepted
    if weights.storage != "nfs":
        return
    if where is None:
        found = f"{weights.directory}, beneath no mount point of storage.nfs"
        yield ("weights", "directory"), found, "a directory beneath one"
        return
    share = parts.storage.nfs[where]
    clients = parts.hosts_named if share.clients is None else {*share.clients, share.server}
    without = sorted(parts.hosts_named - clients)
    if without:
        found = f"clients without {', '.join(without)}"
        yield ("storage", "nfs", where, "clients"), found, "every host: all read the model there"
    if not share.read_only:
        found = f"false, and {weights.directory} is on it"
        yield ("storage", "nfs", where, "read_only"), found, "true: hosts only read their model"


def beneath(path: str, where: str) -> bool:
    """Whether `path` is `where` or lies below it."""
    return path == where or path.startswith(f"{where}/")


def no_source_kept_back(parts: Parts) -> Iterator[Finding]:
    """What is never used must not look as if it were."""
    if parts.model is None or parts.weights is None or parts.weights.storage == "nvme":
        return
    for index, source in enumerate(parts.model.sources or ()):
        if source.here is None and source.kinds:
            found = f"{source.kinds[0]} with weights.storage: {parts.weights.storage}"
            accepted = "only {here: DIRECTORY}, to compare with: nothing is copied to a share"
            yield ("model", "sources", index), found, accepted


CHECKS = (
    one_way_to_the_model, sources_are_whole, revision_is_pinned, model_has_a_place,
    storage_is_where_it_says, no_source_kept_back,
)  # fmt: skip
