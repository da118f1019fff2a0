"""A model's facts from a directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vllm_cluster.model.safetensors import (
    ModelReadError,
    collect,
    read_header,
    read_index,
    read_json,
    with_tensors,
)
from vllm_cluster.plan.memory.config import names_dtype, read_config
from vllm_cluster.plan.memory.facts import ModelFacts, Runner
from vllm_cluster.plan.memory.synthesis import synthesize

INDEX = "model.safetensors.index.json"
#: A checkpoint made from a config.json may differ this much from the index's total_size.
MAX_SIZE_ERROR = 0.005


def read_model(
    folder: Path, *, name: str | None = None, runner: Runner | None = None
) -> ModelFacts:
    """The facts of the model in a folder with a config.json.

    With safetensors files their headers are read. Without them (a config.json
    and an index, or a config.json alone) the tensors follow from the config;
    an index's total_size must then agree to 0.5 %.

    Raises ModelReadError for missing or broken files and for a size that does
    not agree, UnsupportedModelError for a model that the plan does not know.
    """
    config = read_json(folder / "config.json")
    facts = read_config(config, name=name or folder.name, runner=runner)
    published, files = _index(folder)
    if files and all((folder / file).is_file() for file in files):
        found = [
            (tensor, dtype, shape)
            for file in files
            for tensor, (dtype, shape) in read_header(folder / file).items()
        ]
        facts = with_tensors(facts, collect(found), named=names_dtype(config))
        return replace(facts, published_bytes=published)
    if files and any((folder / file).is_file() for file in files):
        missing = [file for file in files if not (folder / file).is_file()]
        raise ModelReadError(f"{folder} lacks {len(missing)} of {len(files)} files: {missing[0]} …")
    facts = replace(synthesize(facts, config), published_bytes=published)
    check_size(facts)
    return facts


def _index(folder: Path) -> tuple[int | None, list[str]]:
    """total_size and the files that the index names, or the files that lie there."""
    if (folder / INDEX).is_file():
        size, names = read_index(folder / INDEX)
        return size, sorted(set(names.values()))
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    # Mistral publishes the same weights twice, the second time in files of this name.
    return None, [name for name in files if not name.startswith("consolidated")] or files


def check_size(facts: ModelFacts) -> None:
    """Raise ModelReadError when made tensors do not add up to what the index says."""
    if facts.published_bytes is None:
        return
    error = abs(facts.stored_bytes - facts.published_bytes) / facts.published_bytes
    if error > MAX_SIZE_ERROR:
        raise ModelReadError(
            f"{facts.name}: the tensors that follow from its config.json are "
            f"{facts.stored_bytes} bytes, its index says {facts.published_bytes}: the model has "
            "parts that are not known here; give the directory with its safetensors files"
        )
