"""Start real vLLM on tiny models inside the CPU image and bring back what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import chroot
from vllm_cluster.plan.memory.facts import Layout

REPOSITORY = Path(__file__).resolve().parents[3]
ROOTFS = REPOSITORY / ".cache" / "image" / "current" / "rootfs"
PYTHON = "/opt/vllm/bin/python"
DEFAULT_MODEL_LEN = 1024
#: Importing vLLM, once; then one start of workers for each case, on a slow machine.
IMPORT_TIMEOUT_S, CASE_TIMEOUT_S = 120, 150
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens, .*?: ([\d.]+)x")
_ENV = {
    "PATH": "/opt/vllm/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    # The engine in this process: one import of vLLM less for every case.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": "/srv",
}


@dataclass(frozen=True)
class Case:
    """One model in one layout, as vLLM is asked to serve it."""

    kind: str
    layout: Layout
    max_model_len: int = DEFAULT_MODEL_LEN
    kv_bytes: int = 24_000_000
    arguments: tuple[tuple[str, Any], ...] = field(default=())

    def __str__(self) -> str:
        layout = self.layout
        parts = [self.kind, f"tp{layout.tensor}", f"pp{layout.pipeline}"]
        if layout.partition:
            parts.append("+".join(map(str, layout.partition)))
        if layout.expert_parallel:
            parts.append("ep")
        if self.max_model_len != DEFAULT_MODEL_LEN:
            parts.append(f"len={self.max_model_len}")
        parts += [f"{key}={value}" for key, value in self.arguments]
        return "-".join(parts)

    def as_json(self) -> dict[str, Any]:
        """What inside.py reads."""
        layout = self.layout
        partition = layout.partition
        return {
            "name": str(self),
            "env": {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, partition))} if partition else {},
            "arguments": {
                "model": f"/mnt/{self.kind}",
                "skip_tokenizer_init": True,
                "enforce_eager": True,
                "max_model_len": self.max_model_len,
                "max_num_seqs": 8,
                "tensor_parallel_size": layout.tensor,
                "pipeline_parallel_size": layout.pipeline,
                "enable_expert_parallel": layout.expert_parallel,
                "distributed_executor_backend": "mp",
                "kv_cache_memory_bytes": self.kv_bytes,
                "gpu_memory_utilization": 0.1,
                **dict(self.arguments),
            },
        }


class VllmFailedError(AssertionError):
    """vLLM did not come up; the message has its error or the end of its log."""


def run_vllm(cases: Sequence[Case], models: Path) -> dict[str, dict[str, Any]]:
    """What vLLM reports for each case, by the case's name.

    Raises VllmFailedError when a case did not come up.
    """
    found, failed = try_vllm(cases, models)
    if failed:
        raise VllmFailedError("\n\n".join(f"{name}: {why}" for name, why in failed.items()))
    return found


def try_vllm(
    cases: Sequence[Case], models: Path
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What vLLM reports for the cases that came up, and why the others did not.

    The models lie in `models`/kind; the log is written to `models`/vllm.log.
    """
    argv = [PYTHON, "/srv/inside.py", json.dumps({"cases": [c.as_json() for c in cases]})]
    command = chroot.command(
        ROOTFS.resolve(),
        argv,
        env=_ENV,
        binds={models: "/mnt", Path(__file__).parent: "/srv"},
        own_network=True,
    )
    log = models / "vllm.log"
    with log.open("w") as file:
        subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=IMPORT_TIMEOUT_S + CASE_TIMEOUT_S * len(cases),
            check=False,
            cwd="/",
            env=os.environ,
        )
    return _read_log(log.read_text(errors="replace"), cases)


def _read_log(text: str, cases: Sequence[Case]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    found: dict[str, dict[str, Any]] = {}
    failed = dict.fromkeys((str(case) for case in cases), f"no answer\n{_end(text)}")
    for part in re.split(r"^CASE ", text, flags=re.MULTILINE)[1:]:
        name = part.splitlines()[0].strip()
        logged = _TOKENS.search(part)
        for line in part.splitlines():
            if line.startswith("FAILED "):
                failed[name] = f"{json.loads(line[7:])['why']}\n{_end(part)}"
            if line.startswith("FOUND ") and logged is not None:
                found[name] = json.loads(line[6:])
                found[name]["logged_kv_tokens"] = int(logged[1].replace(",", ""))
                found[name]["logged_concurrency"] = float(logged[2])
    return found, {name: why for name, why in failed.items() if name not in found}


def _end(text: str) -> str:
    """The last lines of a log, without the long ones that carry numbers."""
    lines = [line for line in text.splitlines() if not line.startswith(("FOUND ", "FAILED "))]
    return "\n".join(lines[-60:])
