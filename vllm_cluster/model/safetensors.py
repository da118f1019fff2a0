"""Headers and index of safetensors files: names, shapes, dtypes, no weights.

Format: 8 bytes, little endian, the length of a JSON header; then the header
({"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {…}}); then the
data, which is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_cluster.plan.memory.facts import DTYPE_BYTES, ModelFacts, Tensor

#: Longest header that the format's own library accepts.
MAX_HEADER_BYTES = 100_000_000
_EXPERT = re.compile(r"(\.experts\.)\d+(\.)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")


class ModelReadError(Exception):
    """A model's files are missing or not what they should be; the message names the file."""


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """dtype and shape of every tensor in a file.

    Raises ModelReadError for a file that is cut short or not safetensors.
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or not 0 < length <= MAX_HEADER_BYTES:
            raise ModelReadError(f"{path} is not a safetensors file")
        raw = file.read(length)
    if len(raw) < length:
        raise ModelReadError(f"{path} ends inside its header: {len(raw)} of {length} bytes")
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise ModelReadError(f"{path} has a header that is not JSON: {error}") from error
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"),
              default=0)  # fmt: skip
    size = path.stat().st_size
    if size < 8 + length + end:
        raise ModelReadError(
            f"{path} is cut short: {size} bytes, its header promises {8 + length + end}"
        )
    return {
        name: (str(entry["dtype"]), tuple(int(side) for side in entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }


def collect(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[Tensor, ...]:
    """(name, dtype, shape) of many tensors as facts: the experts of a layer become one entry.

    Raises ModelReadError for a dtype that is not known.
    """
    counts: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for name, dtype, shape in tensors:
        if dtype not in DTYPE_BYTES:
            raise ModelReadError(f"tensor {name} has dtype {dtype}, whose size is not known")
        key = (_EXPERT.sub(r"\1*\2", name), dtype, shape)
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        Tensor(name, shape, dtype, count, layer_of(name))
        for (name, dtype, shape), count in counts.items()
    )


def with_tensors(facts: ModelFacts, tensors: tuple[Tensor, ...], *, named: bool) -> ModelFacts:
    """Facts with the tensors of real headers.

    When the config names no dtype (`named` False), it is that of most of the
    model's floating-point bytes, which vLLM takes from the headers as well.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.dtype in ("F32", "F16", "BF16"):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.stored_bytes
    dtype = facts.dtype if named or not sizes else max(sizes, key=lambda name: sizes[name])
    return replace(facts, tensors=tensors, tensors_from="headers", dtype=dtype)


def layer_of(name: str) -> int | None:
    """The decoder layer of a tensor; encoders of images and sound have layers of their own."""
    if any(word in name for word in ("vision", "visual", "audio", "mtp.")):
        return None
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def read_index(path: Path) -> tuple[int | None, Mapping[str, str]]:
    """total_size and weight_map of a model.safetensors.index.json.

    Raises ModelReadError when it is not one.
    """
    index = read_json(path)
    names = index.get("weight_map")
    if not isinstance(names, dict):
        raise ModelReadError(f"{path} has no weight_map")
    size = (index.get("metadata") or {}).get("total_size")
    return (int(size) if size is not None else None), names


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelReadError with the file's name."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelReadError(f"{path} does not exist") from error
    except (ValueError, OSError) as error:
        raise ModelReadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelReadError(f"{path} is not a JSON object")
    return found
