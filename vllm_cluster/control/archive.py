"""The ID that Docker will give to an image archive, read without Docker."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path

_SHA256_HEX = 64


@cache
def image_id(archive: Path) -> str:
    """`sha256:…` of the one image in a `docker save` archive.

    The ID of an image is the digest of its configuration (image-spec v1.2, config.md), and the
    archive's manifest.json names the configuration by it: `<digest>.json`, or
    `blobs/sha256/<digest>` as Docker 25 and newer write it.
    Raises ValueError where `archive` is something else, OSError where it cannot be read.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name == "manifest.json":
                    content = tar.extractfile(member)
                    return _config_digest(archive, json.load(content) if content else None)
    except (tarfile.TarError, json.JSONDecodeError) as error:
        raise ValueError(f"{archive} is not a `docker save` archive: {error}") from error
    raise ValueError(f"{archive} is not a `docker save` archive: it has no manifest.json")


def _config_digest(archive: Path, manifest: object) -> str:
    if not isinstance(manifest, list) or len(manifest) != 1:
        raise ValueError(f"{archive} must hold exactly one image")
    entry = manifest[0] if isinstance(manifest[0], dict) else {}
    name = str(entry.get("Config", "")).removesuffix(".json").rsplit("/", 1)[-1]
    if len(name) != _SHA256_HEX or set(name) - set("0123456789abcdef"):
        raise ValueError(f"{archive}: its manifest names no configuration by digest")
    return f"sha256:{name}"
