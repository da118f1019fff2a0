"""Runs inside the image, in every vLLM worker: counts what the worker holds.

vLLM imports this module before it loads weights (worker_extension_cls). On CPUs
it packs weights for the processor right after loading and drops the originals,
so they are counted between the two steps: what was loaded, in the shapes that
a GPU would keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vllm.model_executor.model_loader import base_loader  # type: ignore[import-not-found]

_loaded: dict[str, Any] = {}
_pack: Callable[..., Any] = base_loader.process_weights_after_loading


def _count_then_pack(model: Any, *others: Any, **more: Any) -> Any:
    _loaded.update(_parameters(model))
    return _pack(model, *others, **more)


base_loader.process_weights_after_loading = _count_then_pack


def _parameters(model: Any) -> dict[str, Any]:
    """Bytes of all parameters, each storage once."""
    seen: set[int] = set()
    total = 0
    for _, value in model.named_parameters(remove_duplicate=False):
        storage = value.untyped_storage()
        if storage.nbytes() and storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        total += value.numel() * value.element_size()
    return {"parameter_bytes": total}


def _tensors(nested: Any) -> Iterator[Any]:
    if hasattr(nested, "untyped_storage"):
        yield nested
    elif isinstance(nested, dict):
        for inner in nested.values():
            yield from _tensors(inner)
    elif isinstance(nested, (list, tuple)):
        for inner in nested:
            yield from _tensors(inner)


class Held:
    """Mixed into the worker by vLLM; `held` is called over its collective_rpc."""

    rank: int
    model_runner: Any

    def held(self) -> dict[str, Any]:
        """Loaded weights, and the KV cache that the worker allocated, in bytes."""
        caches = {
            (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
            for tensor in _tensors(self.model_runner.kv_caches)
        }
        return {"rank": int(self.rank), "kv_bytes": sum(size for _, size in caches), **_loaded}
