"""What the CPU image is made of, and where its parts are kept."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
VLLM = "0.32.0"
RAY = "2.60.0"
TORCH = "2.13.0+cpu"
REFERENCE = f"vllm-cluster/cpu:{VLLM}-ray{RAY}"

# torch's "+cpu" builds are not on the Python package index, they have one of their own.
TORCH_INDEX_URL = "https://download.pytorch.org/whl/cpu"

DEBIAN_PACKAGES = (
    "python3",
    "libsqlite3-0",
    "libffi8",
    "liblzma5",
    "libbz2-1.0",
    "libreadline8",
    "libnuma1",
    "libgomp1",
    "libstdc++6",
    "curl",
    "iproute2",
    "procps",
)

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent
REPOSITORY = IMAGES.parent
LOCK = HERE / "requirements.lock"
PLUGIN = HERE / "ray_cpu_platform"
CACHE = REPOSITORY / ".cache"
IMAGE_CACHE = CACHE / "image"
PIP_CACHE = CACHE / "pip"

# Where the environment lies inside the image.
ENVIRONMENT = "/opt/vllm"
SITE_PACKAGES = f"{ENVIRONMENT}/lib/python{PYTHON}/site-packages"
PATH = f"{ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

LAYERS = [f"Debian {SUITE}", "vLLM and Ray", "platform plugin"]
CONFIG = {
    "Env": [f"PATH={PATH}", "LANG=C.UTF-8", "VLLM_NO_USAGE_STATS=1", "RAY_USAGE_STATS_ENABLED=0"],
    "Entrypoint": None,
    "Cmd": ["bash"],
    "WorkingDir": "/",
    "Labels": {
        "org.opencontainers.image.title": "vLLM and Ray on CPUs",
        "org.opencontainers.image.version": f"{VLLM}-ray{RAY}",
        "vllm-cluster.vllm": VLLM,
        "vllm-cluster.ray": RAY,
    },
}


class RecipeError(Exception):
    """This machine cannot build the image; the message says why and what would help."""


def check_machine() -> None:
    """Raise RecipeError unless this is Linux on x86-64, for which the lock file holds wheels."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise RecipeError(
            f"the CPU image is built on Linux on x86_64, this is {sys.platform} on "
            f"{platform.machine()}: requirements.lock pins wheels for x86_64 alone"
        )


def _digest(parts: Iterable[Path], *values: object) -> str:
    """Return a short hash over the names and the content of files, folders included, and values."""
    digest = hashlib.sha256(repr(values).encode())
    for part in parts:
        files = sorted(part.rglob("*.py")) if part.is_dir() else [part]
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(IMAGES)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def system_key() -> str:
    """Return the key of the Debian layer."""
    return _digest([HERE / "system.py", IMAGES / "archive.py"], SUITE, DEBIAN_PACKAGES)


def environment_key() -> str:
    """Return the key of the layer with vLLM and Ray; it changes with the Debian layer's key."""
    names = ("environment.py", "wheels.py", "prune.py", "compile_tree.py", "requirements.lock")
    parts = [*(HERE / name for name in names), IMAGES / "elf.py", IMAGES / "chroot.py"]
    return _digest(parts, system_key(), ENVIRONMENT, PYTHON, VLLM, TORCH)


def image_key() -> str:
    """Return the key of the whole image."""
    parts = [HERE / "plugin.py", PLUGIN]
    return _digest(parts, environment_key(), CONFIG, REFERENCE)
