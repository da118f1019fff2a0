"""Which architectures the real vLLM takes pipeline stages and LoRA adapters for.

Writes {"no_pipeline": […], "no_lora": […], "not_read": […]}; each class is imported in earnest.
"""

import json
import sys


def main() -> None:
    """Answer."""
    out = sys.stdout
    sys.stdout = sys.stderr
    from vllm.model_executor.models.interfaces import (  # type: ignore  # noqa: PLC0415
        supports_lora,
        supports_pp,
    )
    from vllm.model_executor.models.registry import ModelRegistry  # type: ignore  # noqa: PLC0415

    answer: dict[str, list[str]] = {"no_pipeline": [], "no_lora": [], "not_read": []}
    for name, entry in sorted(ModelRegistry.models.items()):
        try:
            model = entry.load_model_cls()
        except Exception:
            answer["not_read"].append(name)
            continue
        if not supports_pp(model):
            answer["no_pipeline"].append(name)
        if not supports_lora(model):
            answer["no_lora"].append(name)
    json.dump(answer, out)


if __name__ == "__main__":
    main()
