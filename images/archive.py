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
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

# Every entry carries this time (2024-01-01 UTC). Any will do; old enough for no clock to mind.
FIXED_TIME_S = 1_704_067_200
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Layer:
    """One written layer: its tar, the sha256 of that tar, its size."""

    path: Path
    sha256: str
    size_bytes: int


class _HashingWriter(io.RawIOBase):
    """Hands bytes to a file and keeps their sha256."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self.size_bytes += len(data)
        return self._out.write(data)


def _walk(root: Path) -> Iterator[str]:
    """Yield the paths below ``root``, relative to it, sorted within a folder, parents first."""
    stack = [""]
    while stack:
        folder = stack.pop()
        with os.scandir(root / folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            yield f"{folder}{entry.name}"
        stack.extend(
            f"{folder}{entry.name}/"
            for entry in reversed(found)
            if entry.is_dir(follow_symlinks=False)
        )


def _entry(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mtime = FIXED_TIME_S
    info.uname = info.gname = ""
    return info


def write_layer(root: Path, out: Path, *, prefix: str = "") -> Layer:
    """Write the tree below ``root`` as a layer at ``out`` and return what was written.

    ``prefix`` is the folder of the image that ``root`` is ("opt/vllm"; its parents are written as
    plain folders). Device files and sockets are refused with ValueError.
    """
    with out.open("wb") as raw:
        hashing = _HashingWriter(raw)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            tar.copybufsize = _CHUNK_BYTES  # type: ignore[attr-defined]
            for parent in reversed([Path(prefix), *Path(prefix).parents]):
                if str(parent) != ".":
                    folder = tarfile.TarInfo(str(parent))
                    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(_entry(folder))
            for path in _walk(root):
                _add(tar, root / path, str(Path(prefix) / path))
    return Layer(out, hashing.sha256.hexdigest(), hashing.size_bytes)


def _add(tar: tarfile.TarFile, source: Path, name: str) -> None:
    mode = source.lstat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise ValueError(f"{source}: a device or socket does not belong in an image layer")
    info = _entry(tar.gettarinfo(str(source), name))
    if info.isreg():
        with source.open("rb") as content:
            tar.addfile(info, content)
    else:
        tar.addfile(info)


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
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(_entry(info), io.BytesIO(data))
        for layer, name in zip(layers, names, strict=True):
            info = tarfile.TarInfo(name)
            info.size, info.mode = layer.size_bytes, 0o644
            with layer.path.open("rb") as stream:
                tar.addfile(_entry(info), stream)
    return f"sha256:{digest}"
