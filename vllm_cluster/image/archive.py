"""What a `docker save` archive holds, read without Docker."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

_SHA256_HEX = 64
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Archive:
    """One image: its ID, its configuration, its names; by diff ID the member of the archive that
    holds the layer, and the bytes of that member."""

    path: Path
    id: str
    config: bytes
    tags: tuple[str, ...]
    members: dict[str, str]
    sizes: dict[str, int]

    @property
    def layers(self) -> tuple[str, ...]:
        """Diff IDs from the bottom up; a layer may stand there more than once."""
        return diff_ids(self.config)


def diff_ids(config: bytes) -> tuple[str, ...]:
    """The layers that an image's configuration names, from the bottom up."""
    return tuple(str(layer) for layer in json.loads(config)["rootfs"]["diff_ids"])


@cache
def image_id(archive: Path) -> str:
    """`sha256:…` of the one image in a `docker save` archive.

    The ID of an image is the digest of its configuration (image-spec v1.2, config.md), and the
    archive's manifest.json names the configuration by it: `<digest>.json`, or
    `blobs/sha256/<digest>` as Docker 25 and newer write it.
    Raises ValueError where `archive` is something else, OSError where it cannot be read.
    """
    with _opened(archive) as tar:
        for member in tar:
            if member.name == "manifest.json":
                return _config_digest(archive, _entry(archive, tar, member))
    raise ValueError(f"{archive} is not a `docker save` archive: it has no manifest.json")


def read(archive: Path) -> Archive:
    """All that is to be known of it but the layers' content. Raises as `image_id` does."""
    found = image_id(archive)
    with _opened(archive) as tar:
        members = {member.name: member for member in tar.getmembers()}
        entry = _entry(archive, tar, members["manifest.json"])
        config = _content(tar, members.get(str(entry["Config"])))
        if f"sha256:{hashlib.sha256(config).hexdigest()}" != found:
            raise ValueError(f"{archive}: the configuration in it is not that of {found}")
        layers, names = diff_ids(config), [str(name) for name in entry.get("Layers") or ()]
    if lacking := [name for name in names if name not in members]:
        raise ValueError(f"{archive}: lacks {lacking[0]}, which its manifest.json names")
    if len(layers) != len(names):
        raise ValueError(f"{archive}: has {len(names)} layers, its configuration {len(layers)}")
    tags = tuple(str(tag) for tag in entry.get("RepoTags") or ())
    sizes = {diff: members[name].size for diff, name in zip(layers, names, strict=True)}
    return Archive(archive, found, config, tags, dict(zip(layers, names, strict=True)), sizes)


@contextmanager
def layer(archive: Archive, diff_id: str) -> Iterator[IO[bytes]]:
    """The tar of a layer as its diff ID counts it, unpacked where the archive has it packed.

    Raises ValueError for a compression that the standard library cannot read.
    """
    with _opened(archive.path) as tar:
        stream = tar.extractfile(archive.members[diff_id])
        if stream is None:
            raise ValueError(f"{archive.path}: {archive.members[diff_id]} is no file")
        magic = stream.read(4)
        stream.seek(0)
        if magic == _ZSTD:
            raise ValueError(
                f"{archive.path}: its layers are packed with zstd; write it anew with `docker save`"
            )
        if magic[:2] != _GZIP:
            yield stream
            return
        with gzip.open(stream) as unpacked:
            yield cast("IO[bytes]", unpacked)


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, json.JSONDecodeError, EOFError) as error:
        raise ValueError(f"{archive} is not a `docker save` archive: {error}") from error


def _entry(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    manifest = json.loads(_content(tar, member))
    if not isinstance(manifest, list) or len(manifest) != 1:
        raise ValueError(f"{archive} must hold exactly one image")
    return manifest[0] if isinstance(manifest[0], dict) else {}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> bytes:
    content = tar.extractfile(member) if member else None
    return content.read() if content else b""


def _config_digest(archive: Path, entry: dict[str, Any]) -> str:
    name = str(entry.get("Config", "")).removesuffix(".json").rsplit("/", 1)[-1]
    if len(name) != _SHA256_HEX or set(name) - set("0123456789abcdef"):
        raise ValueError(f"{archive}: its manifest names no configuration by digest")
    return f"sha256:{name}"
