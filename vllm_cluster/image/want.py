"""Which layers have to travel, and which of them a host has in another image. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_cluster.image.seen import Seen


@dataclass(frozen=True)
class Image:
    """The wanted image: its ID, its layers (diff IDs from the bottom up), the names it gets."""

    id: str
    layers: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def short(self) -> str:
        """The ID as far as it is needed to tell images apart."""
        return self.id.removeprefix("sha256:")[:16]


@dataclass(frozen=True)
class Cargo:
    """The `layers` (diff IDs) that travel; `first` counts the layers beneath, which all have."""

    image: Image
    first: int
    layers: tuple[str, ...]

    @property
    def name(self) -> tuple[str, str]:
        """What the agents call it: a model and its revision."""
        return f"images/{self.image.short}", f"from-{self.first}"


def first_missing(layers: tuple[str, ...], seen: Seen) -> int:
    """How many layers from the bottom a host's Docker has, as an image of its shows them.

    A layer counts with all beneath it: Docker keeps a layer for a chain, so that the same files
    above another base are another layer to it (image-spec v1.2, config.md, ChainID).
    """
    return max((_common(layers, image.layers) for image in seen.images), default=0)


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count


def cargo(image: Image, receivers: Iterable[Seen]) -> Cargo:
    """The layers that any of `receivers` lacks, each once.

    What hosts lack is always the upper part of an image, so what one lacks the neediest lacks too.
    """
    layers = image.layers
    first = min((first_missing(layers, seen) for seen in receivers), default=len(layers))
    return Cargo(image, first, tuple(dict.fromkeys(layers[first:])))


def seeds(carried: tuple[str, ...], seen: Seen) -> dict[str, list[str]]:
    """Which of the layers a host need not fetch: those in images of its own, by image ID.

    As few images as possible: each is read whole.
    """
    left = list(carried)
    found: dict[str, list[str]] = {}
    while left:
        best = max(seen.images, key=lambda image: len(set(left) & set(image.layers)), default=None)
        here = [layer for layer in left if best and layer in best.layers]
        if best is None or not here:
            break
        found[best.id] = here
        left = [layer for layer in left if layer not in here]
    return found
