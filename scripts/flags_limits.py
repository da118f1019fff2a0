"""Read what a release of vLLM knows of models, quantisation and attention from an unpacked wheel.

Run as `python -m scripts.flags_limits FOLDER OUT` in a process of its own; writes JSON to OUT.
The released classes themselves are asked, with what they cannot run on replaced (flags_stubs).
Which models support pipeline parallelism or LoRA is read from the bases of their classes.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from scripts.flags_vllm import prepare, pretend_nvidia

CAPABILITIES = (70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121)  # of NVIDIA GPUs, times ten


def models() -> dict[str, Any]:
    """Architectures by what they lack, and those that are no longer in vLLM."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    lacking: dict[str, list[str]] = {"no_pipeline": [], "no_lora": []}
    entries = registry.ModelRegistry.models
    unread = [name for name in sorted(entries) if not add_model(name, entries[name], lacking)]
    pretend_nvidia()  # some refuse to be imported elsewhere
    unread = [name for name in unread if not add_model(name, entries[name], lacking)]
    return {
        **{key: sorted(names) for key, names in lacking.items()},
        "not_read": unread,
        "known": sorted(entries),
        "removed": registry._PREVIOUSLY_SUPPORTED_MODELS,
        "plugins": registry._OOT_SUPPORTED_MODELS,
    }


def add_model(name: str, entry: Any, lacking: dict[str, list[str]]) -> bool:
    """Note what the class of a model lacks; False where it cannot be imported here."""
    interfaces = importlib.import_module("vllm.model_executor.models.interfaces")
    try:
        model = getattr(importlib.import_module(entry.module_name), entry.class_name)
    except Exception as error:  # one of hundreds; the table names it as not read
        sys.stderr.write(f"{name}: {error!r}\n")
        return False
    if not isinstance(model, type):  # some modules set the class aside on other devices
        sys.stderr.write(f"{name}: no class\n")
        return False
    # The attributes that vLLM also looks for exist on every class here: its bases must tell.
    staged = interfaces.SupportsPP in model.__mro__ and interfaces._supports_pp_inspect(model)
    if not staged:
        lacking["no_pipeline"].append(name)
    if interfaces.SupportsLoRA not in model.__mro__:
        lacking["no_lora"].append(name)
    return True


def quantisation() -> dict[str, Any]:
    """The methods, each with the least compute capability and the dtypes that it works with."""
    module = importlib.import_module("vllm.model_executor.layers.quantization")
    methods: dict[str, Any] = {}
    for name in module.QUANTIZATION_METHODS:
        try:
            config = module.get_quantization_config(name)
            dtypes = config.__new__(config).get_supported_act_dtypes()
            least = config.get_min_capability()
        except Exception as error:  # nothing is claimed of what could not be asked
            sys.stderr.write(f"{name}: {error!r}\n")
            methods[name] = {}
            continue
        names = sorted({_dtype(each) for each in dtypes})
        methods[name] = {"min_capability": least if isinstance(least, int) else None}
        methods[name]["dtypes"] = names
    return {"methods": methods, "deprecated": list(module.DEPRECATED_QUANTIZATION_METHODS)}


def _dtype(each: Any) -> str:
    name: str = getattr(each, "__name__", str(each))
    return {"half": "float16"}.get(name, name)


def attention() -> dict[str, Any]:
    """The attention backends for NVIDIA GPUs, with the GPUs and KV cache dtypes of each."""
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    interface = importlib.import_module("vllm.platforms.interface")
    backends: dict[str, Any] = {}
    for member in registry.AttentionBackendEnum:
        if member.name.startswith(("ROCM", "XPU", "CPU", "AMX", "CUSTOM", "NO_", "TORCH")):
            continue
        try:
            backend = member.get_class()
            works = [
                each
                for each in CAPABILITIES
                if backend.supports_compute_capability(
                    interface.DeviceCapability(each // 10, each % 10)
                )
            ]
            dtypes = list(backend.supported_kv_cache_dtypes)
            multi_latent = bool(backend.is_mla())
        except Exception as error:  # nothing is claimed of what could not be asked
            sys.stderr.write(f"{member.name}: {error!r}\n")
            continue
        backends[member.name] = {"capabilities": works, "kv_cache_dtypes": dtypes}
        backends[member.name]["mla"] = multi_latent
    return backends


def main() -> None:
    """Write what was read."""
    folder, out = map(Path, sys.argv[1:])
    prepare(folder.resolve())
    config: ModuleType = importlib.import_module("vllm.config.model")
    speculative: Any = importlib.import_module("vllm.config.speculative")
    cache: Any = importlib.import_module("vllm.config.cache")
    found = {
        "quantisation": quantisation(),
        "models": models(),  # from here on as on NVIDIA GPUs
        "attention": attention(),
        "kv_cache_dtypes": list(get_args(cache.CacheDType)),
        "no_float16": sorted(vars(config)["_FLOAT16_NOT_SUPPORTED_MODELS"]),
        "speculative_methods": list(get_args(speculative.SpeculativeMethod)),
        "speculative_eagle": list(get_args(speculative.EagleModelTypes)),
    }
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
