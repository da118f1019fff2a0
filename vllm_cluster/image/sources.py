"""The layers that have to travel, on one host: pulled, taken out of its Docker, or sent to it."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_cluster.image.archive import Archive
from vllm_cluster.image.hosts import Hosts
from vllm_cluster.image.push import push
from vllm_cluster.image.want import Cargo, seeds
from vllm_cluster.weights.fanout import Model
from vllm_cluster.weights.remote import RemoteError

# Staged here, unpacked by `docker load` into Docker's own directory for temporary files, then in
# its store: that often a layer lies on a host's disk at the worst moment.
COPIES = 3
_DAY_S = 86400.0


@dataclass(frozen=True)
class Source:
    """A host that has the tree of layers, placed under this identity."""

    host: str
    total_bytes: int
    identity: str


def pull(hosts: Hosts, name: str, reference: str, tag: str) -> str:
    """Let Docker there pull NAME@sha256:… and call it `tag`; returns the host."""
    hosts.remotes[name].say(f"pulls {reference}")
    short = reference.partition("@sha256:")[2][:16]
    into = hosts.staging(name, f"{short}.pulled")
    words = ["image-pull", "--reference", reference, "--tag", tag, "--into", into]
    argv = hosts.run_there(name, *words)
    source = {"kind": "download", "argv": argv, "into": into, "phase": "pulling"}
    hosts.obtain(name, Model(f"pulled/{short}", "r", ""), source, again=True)
    hosts.look([name], tag, "")
    if name not in hosts.good([name]) or not hosts.seen[name].id:
        raise RemoteError(f"{name}: Docker pulled {reference} and does not show it")
    return name


def export(hosts: Hosts, name: str, cargo: Cargo) -> Source:
    """Take the layers out of the Docker of a host that has the image."""
    image = cargo.image
    found = hosts.seen[name].image(image.id)
    size_bytes = found.size_bytes if found else 0
    # `docker save` writes the whole image to Docker's own temporary directory first.
    whole = len(cargo.layers) >= len(set(image.layers))
    hosts.check_room(name, size_bytes * (2 if whole else 1))
    into = hosts.staging(name, f"{image.short}.exported")
    words = [
        "image-export",
        "--image",
        image.id,
        "--into",
        into,
        "--layers",
        ",".join(cargo.layers),
    ]
    argv = hosts.run_there(name, *words)
    source = {"kind": "download", "argv": argv, "into": into, "phase": "taking out of Docker"}
    state = hosts.obtain(name, Model(*cargo.name, ""), source)
    return Source(name, int(state["total_bytes"]), str(state["identity"]))


def send(hosts: Hosts, name: str, cargo: Cargo, archive: Archive) -> Source:
    """Send the layers from an archive of this machine, but for those the host has elsewhere."""
    remote, into = hosts.remote(name), hosts.staging(name, f"{cargo.image.short}.pushed")
    model, revision = cargo.name
    try:
        there = remote.call("check", "--model", model, "--revision", revision)
    except RemoteError:  # the usual case: it is not there
        hosts.check_room(name, COPIES * sum(archive.sizes[diff_id] for diff_id in cargo.layers))
        seed(hosts, name, cargo, into)
        files = push(archive, cargo.layers, remote, into)
        source = {"kind": "directory", "path": into, "mode": "move", "files": files}
        there = hosts.obtain(name, Model(model, revision, ""), source)
    return Source(name, int(there["total_bytes"]), str(there["identity"]))


def seed(hosts: Hosts, name: str, cargo: Cargo, into: str) -> None:
    """Take layers that other images of the host have from there, into a tree about to be filled."""
    remote = hosts.remote(name)
    for image_id, layers in seeds(cargo.layers, hosts.seen[name]).items():
        remote.say(f"takes {len(layers)} of {len(cargo.layers)} layers from its {image_id[:19]}")
        words = ["image-export", "--image", image_id, "--into", into, "--seed"]
        remote.call(*words, "--layers", ",".join(layers), timeout_s=_DAY_S)
