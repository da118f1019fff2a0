"""Ask one vLLM process on this machine and keep its answer in .cache/model/reference.json."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from images import chroot
from images.cpu import recipe
from images.model.make import DESCRIPTION, MODEL
from images.progress import Progress

PROMPT = "The cluster answers"
MAX_TOKENS = 24
REFERENCE = recipe.CACHE / "model" / "reference.json"
_HERE = Path(__file__).resolve().parent
_ENV = {
    "PATH": recipe.PATH,
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The engine and its only worker stay in the process that asks: one import instead of three.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def reference(progress: Progress, prompt: str = PROMPT, max_tokens: int = MAX_TOKENS) -> Any:
    """Return the greedy answer of one process, as in reference.json, asking only if need be.

    That is {"prompt", "text", "token_ids", "seconds", "of"}; "of" is what the answer depends on:
    image, model and request. Needs root, the built image and model; the process has no network but
    a loopback of its own. Raises CalledProcessError, vLLM's words on stderr, if vLLM fails.
    """
    request = {"prompt": prompt, "max_tokens": max_tokens}
    of = {
        "image": json.loads((recipe.IMAGE_CACHE / "current" / "image.json").read_text())["id"],
        "model": json.loads(DESCRIPTION.read_text())["files"],
        "request": request,
        "asked_by": hashlib.sha256((_HERE / "answer.py").read_bytes()).hexdigest(),
    }
    if REFERENCE.is_file():
        kept = json.loads(REFERENCE.read_text())
        if kept.get("of") == of:
            progress.say("one process answered this before")
            return kept
    began = time.monotonic()
    with progress.step("reference: ask one vLLM process"):
        answer = ask(request)
    seconds = round(time.monotonic() - began, 1)
    known = {"prompt": prompt, **answer, "seconds": seconds, "of": of}
    REFERENCE.write_text(json.dumps(known, indent=2) + "\n")
    return known


def ask(request: dict[str, Any], model: Path = MODEL) -> dict[str, Any]:
    """Return {"text", "token_ids"}: what one vLLM process makes of ``request``."""
    run = subprocess.run(
        chroot.command(
            (recipe.IMAGE_CACHE / "current" / "rootfs").resolve(),
            ["python", "/mnt/answer.py", "/srv", json.dumps(request)],
            env=_ENV,
            binds={_HERE: "/mnt", model: "/srv"},
            own_network=True,
        ),
        check=False,
        text=True,
        capture_output=True,
    )
    if run.returncode:
        sys.stderr.write(run.stderr + run.stdout)
        run.check_returncode()
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer
