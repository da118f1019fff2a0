"""What one linear layer of [out, in] weighs in each stored format."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from vllm_cluster.plan.memory.facts import Quantization

Stored = tuple[str, tuple[int, ...], str]


def store_linear(
    quantization: Quantization | None, dtype: str, name: str, out: int, into: int
) -> Iterator[Stored]:
    """The tensors of one linear layer: (last part of the name, shape, dtype).

    Formats as written by AutoAWQ, GPTQModel, DeepSeek (fp8 blocks) and
    llm-compressor (compressed-tensors).
    """
    if quantization is None or is_ignored(quantization, name):
        yield "weight", (out, into), dtype
        return
    q = quantization
    if q.method == "fp8" and q.block is not None:
        yield "weight", (out, into), "F8_E4M3"
        yield "weight_scale_inv", (ceil(out / q.block[0]), ceil(into / q.block[1])), "F32"
    elif q.method == "fp8":
        yield "weight", (out, into), "F8_E4M3"
        yield "weight_scale", (1,), "F32"
    elif q.method == "awq":
        groups, packed = _groups(q, into), 32 // q.bits
        yield "qweight", (into, out // packed), "I32"
        yield "qzeros", (groups, out // packed), "I32"
        yield "scales", (groups, out), "F16"
    elif q.method == "gptq":
        groups, packed = _groups(q, into), 32 // q.bits
        yield "qweight", (into // packed, out), "I32"
        yield "qzeros", (groups, out // packed), "I32"
        yield "scales", (groups, out), "F16"
        yield "g_idx", (into,), "I32"
    elif q.method == "compressed-tensors":
        yield from _compressed(q, dtype, out, into)
    else:
        # MXFP4 checkpoints quantise their experts only; those have their own names.
        yield "weight", (out, into), dtype


def _compressed(q: Quantization, dtype: str, out: int, into: int) -> Iterator[Stored]:
    if q.format == "pack-quantized":
        packed = 32 // q.bits
        yield "weight_packed", (out, into // packed), "I32"
        yield "weight_scale", (out, _groups(q, into)), dtype
        yield "weight_shape", (2,), "I64"
        if not q.symmetric:
            yield "weight_zero_point", (out // packed, _groups(q, into)), "I32"
    elif q.bits == 8:
        yield "weight", (out, into), "F8_E4M3" if q.format == "float-quantized" else "I8"
        yield "weight_scale", (out, 1), dtype
    else:
        yield "weight", (out, into), dtype


def _groups(q: Quantization, into: int) -> int:
    return into // q.group if q.group > 0 else 1


def is_ignored(quantization: Quantization, name: str) -> bool:
    """Whether a module keeps the model's own dtype.

    Names in the list are whole modules, their ends, or "re:" patterns; the
    layer number is not looked at, which is right for every list of a public
    model seen: they name kinds of layers.
    """
    import re  # noqa: PLC0415 - only the rare "re:" entries need it

    for entry in quantization.ignored:
        if entry.startswith("re:"):
            if re.match(entry[3:], name):
                return True
        elif name == entry or name.endswith(f".{entry}") or entry.endswith(f".{name}"):
            return True
    return False
