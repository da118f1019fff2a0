"""Image layers and image archives, written so that the same files give the same image ID.

An image's ID is the sha256 of its configuration, and the configuration names each layer by the
sha256 of its uncompressed tar. So a tar here has sorted entries, one fixed time, numeric owners
and no user names; nothing in it depends on who built it, when or where.
The archive is what ``docker load`` reads: manifest.json, the configuration, the layers
(Docker Image Specification v1.2, "Combined Image JSON + Filesystem Changeset Format").
Layers are not compressed: the archive goes to machines next door, where gzip costs more time
than it saves.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Every entry carries this time (2024-01-01 UTC). Any will do; old enough for no clock to mind.
FIXED_TIME_S = 1_704_067_200
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Layer:
    """One written layer: its tar, the sha256 of that tar, its size."""

    path: Path
    sha256: str
    size_bytes: int


def write_layer(root: Path, out: Path, paths: Sequence[str] = (".",)) -> Layer:
    """Write ``paths`` of the tree at ``root``, with all that is below them, as a layer at ``out``.

    ``paths`` are relative to ``root``; a layer is unpacked on top of those before it, so it needs
    no parents that they have. Raises CalledProcessError, tar's words on stderr, if tar fails.
    GNU tar reads a tree of 50,000 files ten times faster than Python's tarfile does.
    """
    digest, size_bytes = hashlib.sha256(), 0
    with (
        out.open("wb") as file,
        subprocess.Popen(
            [
                *("tar", "--create", "--format=gnu", "--sort=name", f"--mtime=@{FIXED_TIME_S}"),
                *("--numeric-owner", f"--directory={root}", "--", *paths),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        ) as tar,
    ):
        assert tar.stdout is not None  # noqa: S101 - it is a pipe
        while chunk := tar.stdout.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            size_bytes += len(chunk)
    if tar.returncode:
        raise subprocess.CalledProcessError(tar.returncode, tar.args)
    return Layer(out, digest.hexdigest(), size_bytes)


def _entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size_bytes, 0o644, FIXED_TIME_S
    return info


def image_config(
    layers: list[Layer], *, config: Mapping[str, Any], comments: list[str]
) -> dict[str, Any]:
    """Return an image configuration for ``layers``; ``config`` is its Env, Cmd, Labels and so on.

    ``comments`` says for each layer what it holds (`docker history` shows it).
    """
    created = datetime.fromtimestamp(FIXED_TIME_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}" for layer in layers]},
        "history": [{"created": created, "comment": comment} for comment in comments],
    }


def write_image(out: Path, layers: list[Layer], config: Mapping[str, Any], reference: str) -> str:
    """Write an archive for ``docker load`` and return the image's ID ("sha256:...").

    ``reference`` is the name and tag that the image gets where it is loaded.
    """
    content = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(content).hexdigest()
    names = [f"{layer.sha256}/layer.tar" for layer in layers]
    manifest = [{"Config": f"{digest}.json", "RepoTags": [reference], "Layers": names}]
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.copybufsize = _CHUNK_BYTES  # type: ignore[attr-defined]
        for name, data in (
            ("manifest.json", json.dumps(manifest, separators=(",", ":")).encode()),
            (f"{digest}.json", content),
        ):
            tar.addfile(_entry(name, len(data)), io.BytesIO(data))
        for layer, name in zip(layers, names, strict=True):
            with layer.path.open("rb") as stream:
                tar.addfile(_entry(name, layer.size_bytes), stream)
    return f"sha256:{digest}"
