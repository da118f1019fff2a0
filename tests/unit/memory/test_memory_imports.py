"""What the plan must not import, so that it answers at once."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "huggingface_hub", "pyinfra", "httpx", "rich")
MODULES = (
    "vllm_cluster.plan.decide",
    "vllm_cluster.plan.whatif",
    "vllm_cluster.plan.picture",
    "vllm_cluster.plan.memory.gpus",
    "vllm_cluster.plan.memory.synthesis",
    "vllm_cluster.model.local",
    "vllm_cluster.model.hub",
)


def test_nothing_slow_is_imported_for_a_plan() -> None:
    code = f"import sys, {', '.join(MODULES)}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
