"""Where a model comes from, as the first host's agent is told it.

A hub (downloaded by that host, with the serving image's huggingface_hub), a directory of that host
(a mounted export, a hub cache, plain files), a directory of the control machine (pushed over SSH).
Several may be named; the first that gives the model whole is taken.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.scan import SourceFile, find_model_dir, scan
from vllm_cluster.weights.manifest import check_revision, slug_of

# Other formats of the same weights, which vLLM does not load beside safetensors.
DEFAULT_EXCLUDE = ("original/*", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "consolidated*")
_TOKEN_IN_CONTAINER = "/run/secrets/hf-token"  # noqa: S105  (a path)
_AGENT_IN_CONTAINER = "/run/weights-agent.pyz"


@dataclass(frozen=True)
class Hub:
    """A repository of a Hugging Face hub. token_file is a path on the downloading host, mode 0600;
    endpoint another hub's address; exclude are patterns of files that are left out."""

    repo: str
    token_file: str | None = None
    endpoint: str | None = None
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE


@dataclass(frozen=True)
class HostDirectory:
    """A directory of the first host. mode as the agent's Adoption: auto, copy, link."""

    path: str
    mode: str = "auto"


@dataclass(frozen=True)
class Push:
    """A directory of the control machine, as it was when it was looked at."""

    directory: Path
    files: tuple[SourceFile, ...]


def look(directory: Path, revision: str) -> Push:
    """Look at a directory of the control machine (a hub cache is recognised).

    Raises WeightsError naming a file that cannot be part of a model.
    """
    found = find_model_dir(directory.absolute(), revision)
    return Push(found, tuple(scan(found)))


def check_unchanged(push: Push) -> None:
    """To be called when it was pushed. Raises WeightsError naming a file that changed meanwhile."""
    before = {file.path: file for file in push.files}
    after = {file.path: file for file in scan(push.directory)}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            raise WeightsError(f"changed in {push.directory} while it was pushed", file=path)


def pushed_dir(root: str, model: str, revision: str) -> str:
    """Where a push goes on the first host: the file system on which it will stay."""
    return f"{root}/.staging/{slug_of(model)}@{check_revision(revision)}.pushed"


def rsync_argv(
    push: Push,
    ssh: Sequence[str],
    target: str,
    *,
    limit_mbit: float | None = None,
    sudo: bool = False,
) -> list[str]:
    """The push as a command; its stdin is `rsync_names(push)`. Run again it goes on where it was.

    ssh: the command that reaches the host, without the host. target: HOST:DIRECTORY.
    Links are followed to the files they name; rsync verifies what it transfers. `sudo`: the user
    of SSH is not root there.
    """
    argv = ["rsync", "--times", "--copy-links", "--partial", "--inplace", "--mkpath"]
    argv += ["--info=progress2", "--chmod=D755,F644"]
    argv += ["--from0", "--files-from=-", "--rsh", shlex.join(ssh)]
    if sudo:
        argv.append("--rsync-path=sudo -n rsync")
    if limit_mbit:
        argv.append(f"--bwlimit={max(1, int(limit_mbit * 1e6 / 8 / 1024))}")
    return [*argv, f"{push.directory}/", f"{target}/"]


def rsync_names(push: Push) -> bytes:
    return b"".join(file.path.encode() + b"\0" for file in push.files)


def make_wish(
    model: str,
    revision: str,
    sources: Sequence[dict[str, Any]],
    *,
    host: str,
    reserve_bytes: int = 1 << 30,
    mountpoint: str | None = None,
    keep: int = 2,
    **more: Any,
) -> str:
    """What `obtain --wish` reads. sources: of the functions below, in order of preference.

    `more` are other keys of the agent's Wish (identity, again, secrets).
    """
    slug_of(model)
    check_revision(revision)
    value = {
        "model": model,
        "revision": revision,
        "sources": list(sources),
        "me": host,
        "reserve_bytes": reserve_bytes,
        "mountpoint": mountpoint,
        "keep": keep,
        **more,
    }
    return json.dumps(value)


def from_hub(
    hub: Hub,
    revision: str,
    *,
    root: str,
    agent: str,
    image: str,
    docker: Sequence[str] = ("docker",),
    reserve_bytes: int = 1 << 30,
) -> dict[str, Any]:
    """Download inside the serving image: the hosts have no huggingface_hub, the image has.

    root: the weights root; agent: the agent's path on the host; image: by digest, present already.
    The token is a mounted file, so neither the command line nor `docker inspect` shows it.
    """
    into = f"{root}/.staging/{slug_of(hub.repo)}@{check_revision(revision)}.download"
    argv = [*docker, "run", "--rm", "--pull=never", "--network=host", "--entrypoint=python3"]
    argv += ["--log-driver=none", "--volume", f"{root}:{root}"]
    argv += ["--volume", f"{agent}:{_AGENT_IN_CONTAINER}:ro"]
    if hub.token_file:
        argv += ["--volume", f"{hub.token_file}:{_TOKEN_IN_CONTAINER}:ro"]
        argv += ["--env", f"HF_TOKEN_PATH={_TOKEN_IN_CONTAINER}"]
    if hub.endpoint:
        argv += ["--env", f"HF_ENDPOINT={hub.endpoint}"]
    argv += ["--env", "HF_HUB_DISABLE_PROGRESS_BARS=1", "--env", "HF_HUB_OFFLINE=0"]
    argv += ["--env", f"HF_HOME={root}/.staging/.hub", image]
    argv += download_argv(hub, revision, root=root, agent=_AGENT_IN_CONTAINER, into=into)
    argv.append(f"--reserve-bytes={reserve_bytes}")
    name = f"{hub.repo} at {hub.endpoint or 'the hub'}"
    return {"kind": "download", "name": name, "argv": argv, "into": into}


def download_argv(hub: Hub, revision: str, *, root: str, agent: str, into: str) -> list[str]:
    """The agent's download command, for a Python that has huggingface_hub."""
    argv = [agent, "--root", root, "--json", "download", "--repo", hub.repo, "--revision", revision]
    argv += ["--into", into]
    for pattern in hub.exclude:
        argv += ["--exclude", pattern]
    return argv


def from_host(directory: HostDirectory) -> dict[str, Any]:
    return {"kind": "directory", "path": directory.path, "mode": directory.mode}


def from_push(
    push: Push, *, root: str, model: str, revision: str, sums: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What was pushed must be all of it, of the same sizes, and of these SHA-256 by path where
    they are known; it is moved, not copied, into place."""
    files = [
        {"path": f.path, "size": f.size_bytes, "sha256": (sums or {}).get(f.path)}
        for f in push.files
    ]
    path = pushed_dir(root, model, revision)
    return {"kind": "directory", "path": path, "mode": "move", "files": files}
