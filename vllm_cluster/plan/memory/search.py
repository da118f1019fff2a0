"""The longest context, the fewest hosts: answers found by trying layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from vllm_cluster.plan.memory.facts import GpuFacts, Layout, LayoutError, ModelFacts, Serving
from vllm_cluster.plan.memory.fit import Fit, fit
from vllm_cluster.plan.memory.weights import check_split


def valid_tensor_sizes(model: ModelFacts, most: int) -> list[int]:
    """Tensor-parallel sizes up to `most` that vLLM accepts for the model, ascending."""
    sizes = []
    for tensor in range(1, most + 1):
        try:
            check_split(model, Layout(tensor))
        except LayoutError:
            continue
        sizes.append(tensor)
    return sizes


def host_shape(model: ModelFacts, gpus: int) -> tuple[int, int] | None:
    """Tensor size and stages inside a host that use most of its GPUs, wide groups first.

    None when the model cannot be divided for the host at all.
    """
    shapes = [
        (tensor, stages)
        for tensor in valid_tensor_sizes(model, gpus)
        if (stages := gpus // tensor) <= model.layers
    ]
    return max(shapes, key=lambda shape: (shape[0] * shape[1], shape[0]), default=None)


def try_fit(
    model: ModelFacts, layout: Layout, serving: Serving, gpus: Sequence[GpuFacts]
) -> Fit | None:
    """The fit, or None when vLLM would refuse the layout itself."""
    try:
        return fit(model, layout, serving, gpus)
    except LayoutError:
        return None


def longest_context(
    model: ModelFacts, layout: Layout, serving: Serving, gpus: Sequence[GpuFacts]
) -> int:
    """The largest max_model_len with which the layout fits, 0 when not even 1 token does.

    Not above what the model was made for. Between whole blocks the answer is
    rounded down to one.
    """
    top = serving.max_model_len or model.default_max_model_len
    block = serving.block_size or 16
    low, high = 0, ceil(top / block)
    while low < high:
        middle = (low + high + 1) // 2
        length = min(middle * block, top)
        found = try_fit(model, layout, replace(serving, max_model_len=length), gpus)
        if found is not None and found.fits:
            low = middle
        else:
            high = middle - 1
    return min(low * block, top)


def fewest_hosts(
    model: ModelFacts, serving: Serving, gpu: GpuFacts, gpus_per_host: int, most: int = 16
) -> Layout | None:
    """The smallest tensor x pipeline layout over hosts that fits, None when `most` do not do."""
    shape = host_shape(model, gpus_per_host)
    if shape is None:
        return None
    for hosts in range(1, most + 1):
        layout = Layout(shape[0], shape[1] * hosts)
        if layout.pipeline > model.layers:
            return None
        found = try_fit(model, layout, serving, [gpu] * layout.gpus_per_replica)
        if found is not None and found.fits:
            return layout
    return None
