"""The CPU image's file system, for tests that ask the real vLLM and Ray in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from images import chroot

ROOT = Path(__file__).parents[2]
ROOTFS = ROOT / ".cache/image/current/rootfs"
TIMEOUT_S = 1200  # a minute or two on an idle machine
ENVIRONMENT = {
    "PATH": "/opt/vllm/bin:/usr/bin:/bin",
    "PYTHONPATH": "/mnt",  # the project, bound there
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/root",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def build() -> None:
    """Make the image where it is missing: a test without it would prove nothing."""
    if not ROOTFS.is_dir():
        subprocess.run([sys.executable, "-m", "images.cpu", "build"], check=True, cwd=ROOT)


def ask(probe: str, question: object = None) -> Any:
    """Run a program of tests/lab/probes inside the image and give back what it answers."""
    build()
    argv = ["/opt/vllm/bin/python", "-m", f"tests.lab.probes.{probe}"]
    binds = {ROOT: "/mnt"}
    command = chroot.command(ROOTFS.resolve(), argv, env=ENVIRONMENT, binds=binds, own_network=True)
    done = subprocess.run(
        command,
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
