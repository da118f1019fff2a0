"""What a release of vLLM knows of models, quantisation and attention.

The tables lie in data/, written by scripts/flags.py from the released classes.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Limits:
    """One release's table.

    models: lists of architectures (no_pipeline, no_lora, not_read, known), and where those that
        left vLLM went (removed: the last release; plugins: an address).
    quantisation: methods with min_capability (times ten) and dtypes; deprecated methods.
    attention: backends with the capabilities (times ten) and KV cache dtypes that they work with.
    """

    models: Mapping[str, Any]
    quantisation: Mapping[str, Any]
    attention: Mapping[str, Mapping[str, Any]]
    kv_cache_dtypes: tuple[str, ...]
    no_float16: tuple[str, ...]
    speculative_methods: tuple[str, ...]
    speculative_eagle: tuple[str, ...]


@functools.cache
def limits(version: str) -> Limits:
    """Load the table of one release. Raises FileNotFoundError for one without."""
    data = json.loads((DATA / f"vllm-{version}.json").read_text(encoding="utf-8"))
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    return Limits(**fields)
