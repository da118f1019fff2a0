"""Images of any size in any number of layers, with content that nothing can pack."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TAG = "vllm-cluster/made:1"


@dataclass(frozen=True)
class Made:
    """An image: what `docker image inspect` must say of it, and what it is made of."""

    id: str
    diff_ids: tuple[str, ...]
    config: bytes
    layers: tuple[bytes, ...]


def make(layers: Sequence[tuple[int, int]]) -> Made:
    """An image with a layer for each (seed, bytes), the same for the same numbers."""
    tars = tuple(_layer(seed, size) for seed, size in layers)
    diff_ids = tuple(f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars)
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }).encode()  # fmt: skip
    return Made(f"sha256:{hashlib.sha256(config).hexdigest()}", diff_ids, config, tars)


def write(made: Made, path: Path, tag: str = TAG) -> Path:
    """As `docker save` writes it."""
    names = [f"{diff_id[7:]}/layer.tar" for diff_id in made.diff_ids]
    config = f"{made.id[7:]}.json"
    manifest = [{"Config": config, "RepoTags": [tag], "Layers": names}]
    with tarfile.open(path, "w") as tar:
        for name, layer in dict(zip(names, made.layers, strict=True)).items():
            _add(tar, name, layer)
        _add(tar, config, made.config)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return path


def _layer(seed: int, size: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, f"data-{seed}", random.Random(seed).randbytes(size))  # noqa: S311
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
