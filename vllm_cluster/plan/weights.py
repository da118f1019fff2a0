"""Where the model comes from, where it lies on the hosts, by what it is known. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vllm_cluster.plan import paths
from vllm_cluster.spec.model import Description
from vllm_cluster.spec.weights_checks import beneath
from vllm_cluster.spec.weights_model import ModelSource

Storage = Literal["nvme", "nfs", "shared"]
# What a file system that nobody named a revision of is called in its hosts' notes.
UNNAMED = "unnamed"
# Payload of TCP over IPv4 at an MTU of 1500: 1448 of 1526 bytes on the wire.
_PAYLOAD = 0.949


@dataclass(frozen=True)
class ModelId:
    """Which model exactly. `identity` is the SHA-256 of its manifest, empty until one is known."""

    revision: str
    identity: str = ""
    total_bytes: int = 0


@dataclass(frozen=True)
class WeightsPlan:
    """The model on the hosts.

    `model` and `revision` name it; `root` is the directory of all models; `path` is what vLLM is
    given; `manifest` the file whose SHA-256 is the identity. `sources` are sentences for people.
    `limit_mbit` bounds what a host fetches, `link_gbit_s` is the fabric's rate.
    """

    model: str
    revision: str
    identity: str
    total_bytes: int
    root: str
    path: str
    manifest: str
    storage: Storage
    keep: int
    limit_mbit: float | None
    link_gbit_s: float | None
    port_first: int
    port_last: int
    sources: tuple[str, ...]

    @property
    def copied(self) -> bool:
        """Whether every host has a copy of its own, placed and kept by us."""
        return self.storage == "nvme"

    def check(self, unit: str) -> tuple[str, ...]:
        """The command that ends with 0 where this model is there and whole, else with words.

        `unit` is noted as a user of the copy, so that it is not removed under it.
        """
        words = (*self.agent(), "check", "--model", self.model, "--revision", self.revision)
        if self.identity:
            words += ("--identity", self.identity)
        return (*words, "--pin", unit) if self.copied else (*words, *self.aside())

    def agent(self) -> tuple[str, ...]:
        """The agent with its root, as a command of a host."""
        return ("/usr/bin/python3", paths.AGENT, "--root", self.root)

    def aside(self) -> tuple[str, ...]:
        """Where the agent finds a model that it did not place, and its notes about it."""
        return () if self.copied else ("--path", self.path, "--notes", paths.WEIGHTS_NOTES)


def weights_plan(description: Description, known: ModelId | None = None) -> WeightsPlan:
    """All of it. Without `known` (nothing is read yet) the path ends before the revision."""
    weights, model = description.weights, description.model
    copied = weights.storage == "nvme"
    revision = known.revision if known else model.revision or ("" if copied else UNNAMED)
    beneath_root = model.directory
    if copied:
        beneath_root = "/".join(filter(None, (model.directory.replace("/", "--"), revision)))
    path = f"{weights.directory}/{beneath_root}"
    notes = f"{paths.WEIGHTS_NOTES}/{model.directory.replace('/', '--')}@{revision}"
    return WeightsPlan(
        model=model.directory,
        revision=revision,
        identity=known.identity if known else "",
        total_bytes=known.total_bytes if known else 0,
        root=weights.directory,
        path=path,
        manifest=f"{path}/.vllm-cluster/manifest.json" if copied else f"{notes}/manifest.json",
        storage=weights.storage,
        keep=weights.keep,
        limit_mbit=weights.limit_mbit,
        link_gbit_s=description.network.link_gbit_s,
        port_first=description.ports.weights_first,
        port_last=description.ports.weights_last,
        sources=tuple(source_text(source, model.revision or "") for source in model.ordered),
    )


def source_text(source: ModelSource, revision: str) -> str:
    """A source as people name it."""
    if source.here is not None:
        return f"{source.here} on the machine that deploys"
    if source.hub is not None:
        hub = f" at {source.endpoint}" if source.endpoint else ""
        return f"{source.hub}@{revision[:12]} from the hub{hub}"
    if source.host is not None:
        return f"{source.directory} on {source.host}"
    return f"{source.nfs}, an NFS share"


def readers_of(description: Description, path: str) -> list[str]:
    """The hosts that see `path`, which lies on a share of storage.nfs; the server first."""
    over = [where for where in description.storage.nfs if beneath(path, where)]
    if not over:
        return []
    share = description.storage.nfs[max(over, key=len)]
    clients = share.clients if share.clients is not None else list(description.hosts)
    server = [share.server] if share.server in description.hosts else []
    return [*server, *(name for name in clients if name != share.server)]


def load_seconds(total_bytes: int, hosts: int, link_gbit_s: float) -> tuple[float, float]:
    """What loading over NFS takes at each start, in seconds: the least and the most.

    The server's link carries the model once when every host reads only what its ranks keep, and
    once a host when each reads all of it (loaders that walk every shard do).
    """
    once = total_bytes * 8 / (link_gbit_s * 1e9 * _PAYLOAD)
    return once, once * hosts
