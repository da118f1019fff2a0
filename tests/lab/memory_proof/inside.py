"""Runs inside the image: start vLLM for each case, print what its workers really hold.

Standard library and vLLM only. Reads {"cases": [{"name", "arguments", "env"}]}
as JSON from argv[1]; prints a line FOUND or FAILED with JSON for each case. The
cases share one process because importing vLLM takes most of the time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from typing import Any


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Load one model, ask its workers, stop it."""
    # After the environment is set.
    from vllm import LLM  # type: ignore[import-not-found]  # noqa: PLC0415

    llm = LLM(**arguments, worker_extension_cls="worker.Held")
    try:
        config = llm.llm_engine.vllm_config
        return {
            "block_size": config.cache_config.block_size,
            "num_blocks": config.cache_config.num_gpu_blocks,
            "kv_tokens": config.cache_config.kv_cache_size_tokens,
            "max_concurrency": config.cache_config.kv_cache_max_concurrency,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "dtype": str(config.model_config.dtype),
            "ranks": llm.collective_rpc("held"),
        }
    finally:
        llm.llm_engine.engine_core.shutdown()


def forget_what_was_logged() -> None:
    """vLLM logs some lines once a process; two cases may have the same line."""
    import vllm.logger  # type: ignore[import-not-found]  # noqa: PLC0415

    for name in dir(vllm.logger):
        clear = getattr(getattr(vllm.logger, name), "cache_clear", None)
        if clear is not None:
            clear()


def main() -> None:
    """Every case after the other; a case that fails does not stop the rest."""
    for case in json.loads(sys.argv[1])["cases"]:
        forget_what_was_logged()
        os.environ.pop("VLLM_PP_LAYER_PARTITION", None)
        os.environ.update(case["env"])
        print(f"CASE {case['name']}", flush=True)
        try:
            found = measure(case["arguments"])
        except Exception:
            print("\nFAILED " + json.dumps({"name": case["name"], "why": traceback.format_exc()}))
        else:
            print("\nFOUND " + json.dumps({"name": case["name"], **found}))
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
