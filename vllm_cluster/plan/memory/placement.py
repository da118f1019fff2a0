"""Which pipeline stages hold a tensor.

Most of vLLM's models build the embedding on the first stage and the head on
the last. Some build both on every stage: their classes do not ask which stage
they are on. That is memory on each GPU, so it is told apart here (read in
vLLM 0.32.0 and 0.33.0, model_executor/models/*.py).
"""

from __future__ import annotations

import re
from enum import Enum, auto

from vllm_cluster.plan.memory.facts import ModelFacts, Tensor
from vllm_cluster.plan.memory.split import split_of

#: Embedding, last norm and head made without a look at the stage.
EVERY_STAGE_TYPES = frozenset(
    {"gemma", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "gpt2"}
)
_VISION = re.compile(
    r"(^|\.)(audio_(tower|model|encoder)|vision_tower|vision_model|visual|vision_encoder|multi_modal_projector|mm_projector)\."
)


_DRAFT = re.compile(r"(^|\.)mtp\.")


class Place(Enum):
    """Where in the pipeline a tensor lies."""

    LAYER = auto()
    EMBEDDING_FIRST = auto()
    EMBEDDING_ALL = auto()
    EMBEDDING_ENDS = auto()
    HEAD_LAST = auto()
    HEAD_ALL = auto()
    LAST = auto()
    EVERYWHERE = auto()
    NOWHERE = auto()


def place_of(model: ModelFacts, tensor: Tensor) -> Place:
    """The place of a tensor.

    Layers past the model's own are drafts (DeepSeek's multi-token prediction),
    loaded only for speculative decoding. A head in the checkpoint of a model
    with tied embeddings is not loaded.
    """
    split, _ = split_of(tensor)
    if split == "skip" or _DRAFT.search(tensor.name):
        return Place.NOWHERE
    if is_vision(tensor):
        return Place.EVERYWHERE
    if tensor.layer is not None:
        return Place.LAYER if tensor.layer < model.layers else Place.NOWHERE
    if split in ("vocab", "head"):
        return _vocabulary_place(model, is_head=split == "head")
    return _end_place(model, tensor)


def _end_place(model: ModelFacts, tensor: Tensor) -> Place:
    """Norms before the head, and what encoders have beside their word embedding."""
    if tensor.name.startswith("embeddings."):
        return Place.EMBEDDING_FIRST
    return Place.EVERYWHERE if model.model_type in EVERY_STAGE_TYPES else Place.LAST


def is_vision(tensor: Tensor) -> bool:
    """Whether the tensor belongs to an image encoder, which sits on every stage."""
    return bool(_VISION.search(tensor.name))


def _vocabulary_place(model: ModelFacts, *, is_head: bool) -> Place:
    everywhere = model.model_type in EVERY_STAGE_TYPES
    if is_head:
        if model.tied_embeddings:
            return Place.NOWHERE
        return Place.HEAD_ALL if everywhere else Place.HEAD_LAST
    if everywhere:
        return Place.EMBEDDING_ALL
    return Place.EMBEDDING_ENDS if model.tied_embeddings else Place.EMBEDDING_FIRST
