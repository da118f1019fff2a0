"""The agent's commands for images. See image.py for what a tree of an image is."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent import image
from vllm_cluster.weights.agent.commands import Answer, detached, forget_text, read_text
from vllm_cluster.weights.agent.errors import WeightsError, from_os_error, name_this_host
from vllm_cluster.weights.agent.layout import Layout, job_lock
from vllm_cluster.weights.agent.state import Progress


def pull(_layout: Layout, options: Namespace) -> Answer:
    image.pull(options.reference, options.tag, options.into)
    return 0, {"lines": []}


def export(_layout: Layout, options: Namespace) -> Answer:
    layers = [digest for digest in options.layers.split(",") if digest]
    image.export(options.image, layers, options.into, seed=options.seed)
    return 0, {"lines": []}


def load(layout: Layout, options: Namespace) -> Answer:
    """{"key", "me", "model", "revision", "tags"}: the placed tree of that name goes to Docker."""
    text = read_text(options.wish)
    try:
        wish: dict[str, Any] = json.loads(text)
        key, model, revision = (str(wish[name]) for name in ("key", "model", "revision"))
        me, tags = str(wish["me"]), [str(tag) for tag in wish["tags"]]
    except (ValueError, LookupError, TypeError) as exc:
        raise WeightsError(f"what to load cannot be read: {exc}") from exc
    if options.detach:
        return detached(layout, key, text, ["image-load", "--wish"])
    name_this_host(me)
    with job_lock(layout, key):
        try:
            image_id = _load(Progress(layout, key, host=me), layout.ref(model, revision), tags)
        finally:
            forget_text(layout, key, options.wish)
    return 0, {"id": image_id, "lines": [image_id]}


def _load(progress: Progress, tree: Path, tags: list[str]) -> str:
    given = 0

    def count(length: int) -> None:
        nonlocal given
        given += length
        progress.count(given)

    try:
        progress.enter("loading", total_bytes=image.layer_bytes(tree))
        image_id = image.load(tree, tags, count)
    except WeightsError as exc:
        progress.enter("failed", error=exc.as_dict())
        raise
    except OSError as exc:
        error = from_os_error(exc, file=str(exc.filename or tree))
        progress.enter("failed", error=error.as_dict())
        raise error from exc
    progress.enter("done", have_bytes=given, left_s=None, id=image_id)
    return image_id
