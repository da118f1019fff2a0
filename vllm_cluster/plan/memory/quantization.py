"""How a checkpoint says that its linear layers are quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_cluster.plan.memory.facts import Quantization, UnsupportedModelError

#: Methods whose bytes are known here.
KNOWN_METHODS = ("awq", "gptq", "fp8", "mxfp4", "compressed-tensors")


def read_quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> Quantization | None:
    """The quantization_config of a config.json, or None when there is none.

    The method's name is normalised as vLLM does it
    (transformers_utils/model_arch_config_convertor.py, 0.32.0).
    """
    found = next(
        (
            source[key]
            for source in (config, text)
            for key in ("quantization_config", "compression_config")
            if isinstance(source.get(key), Mapping)
        ),
        None,
    )
    if found is None:
        return None
    method = str(found.get("quant_method", "")).lower().replace("_", "-")
    ignored = tuple(
        str(name)
        for key in ("ignore", "modules_to_not_convert", "ignored_layers")
        for name in found.get(key) or ()
    )
    if method == "compressed-tensors":
        return _compressed(found, ignored)
    if method == "fp8":
        block = found.get("weight_block_size")
        return Quantization(
            "fp8",
            bits=8,
            block=(int(block[0]), int(block[1])) if block else None,
            ignored=ignored,
        )
    if method in ("awq", "gptq"):
        return Quantization(
            method,
            bits=int(found.get("bits", found.get("w_bit", 4))),
            group=int(found.get("group_size", found.get("q_group_size", 128))),
            symmetric=bool(found.get("sym", not found.get("zero_point", method == "awq"))),
            activation_order=bool(found.get("desc_act", False)),
            ignored=ignored,
        )
    if method == "mxfp4":
        return Quantization("mxfp4", bits=4, group=32, ignored=ignored)
    raise UnsupportedModelError(
        f"quantization method {method!r} is not known here; known: {', '.join(KNOWN_METHODS)}. "
        "With the safetensors files at hand their headers are enough for plain layers, but the "
        "way the method's scales are split over GPUs is not"
    )


def _compressed(found: Mapping[str, Any], ignored: tuple[str, ...]) -> Quantization:
    """compressed-tensors: the first group's weights speak for all."""
    groups = found.get("config_groups") or {}
    first: Mapping[str, Any] = next(iter(groups.values()), {})
    weights = first.get("weights") or {}
    block = weights.get("block_structure")
    return Quantization(
        "compressed-tensors",
        bits=int(weights.get("num_bits", 16)),
        group=int(weights.get("group_size") or -1),
        block=(int(block[0]), int(block[1])) if isinstance(block, list) else None,
        symmetric=bool(weights.get("symmetric", True)),
        activation_order=bool(weights.get("actorder")),
        format=str(first.get("format") or found.get("format") or ""),
        ignored=ignored,
    )
