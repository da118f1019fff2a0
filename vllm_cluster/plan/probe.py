"""The least request that asks the engine, by what a model is for.

vLLM has the paths of its model's task alone (vllm/entrypoints/pooling/factories.py and
openai/generate, 0.26 to 0.33), so the first that is not 404 is the one.
"""

from __future__ import annotations

from collections.abc import Mapping

REQUESTS: Mapping[str, Mapping[str, object]] = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 1, "temperature": 0},
    "/v1/embeddings": {"input": "Hello"},
    "/classify": {"input": "Hello"},
    "/pooling": {"input": "Hello"},
}
