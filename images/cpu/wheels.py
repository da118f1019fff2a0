"""Get the pinned wheels onto this machine, with the package sources that pip is set up for."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from images.cpu.recipe import CACHE, LOCK, PIP_CACHE, PYTHON, TORCH, TORCH_INDEX_URL

_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
# The image's Python, whatever this machine's is; no source packages, nothing is compiled here.
FOR_THE_IMAGE = [
    "--only-binary=:all:",
    f"--python-version={PYTHON}",
    "--implementation=cp",
    *(f"--platform=manylinux_2_{minor}_x86_64" for minor in (36, 35, 34, 31, 28, 27, 26, 24, 17)),
    *(f"--platform=manylinux{year}_x86_64" for year in ("2014", "2010", "1")),
]


def folder() -> Path:
    """Return the folder for the wheels of this lock file; another lock file has another one."""
    wheels = CACHE / "wheels" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    wheels.mkdir(parents=True, exist_ok=True)
    return wheels


def _download(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *_PIP,
            "download",
            "--no-deps",
            f"--dest={folder()}",
            f"--cache-dir={PIP_CACHE}",
            *FOR_THE_IMAGE,
            *arguments,
        ],
        check=False,
        text=True,
        capture_output=True,
    )


def fetch_torch(index_url: str = TORCH_INDEX_URL) -> None:
    """Download torch's CPU build: from pip's own sources if they have it, else from ``index_url``.

    Raises CalledProcessError, with pip's words on stderr, if neither has it.
    """
    wanted = f"torch=={TORCH}"
    if _download([wanted]).returncode == 0:
        return
    _checked(_download([f"--index-url={index_url}", wanted]))


def fetch_others() -> None:
    """Download every other wheel of the lock file, each checked against its hash there."""
    others = folder() / "others.txt"
    text = LOCK.read_text()
    others.write_text(re.sub(r"^torch==.*\n(?:    --hash.*\n)*", "", text, flags=re.MULTILINE))
    _checked(_download(["--require-hashes", f"--requirement={others}"]))


def _checked(run: subprocess.CompletedProcess[str]) -> None:
    if run.returncode:
        sys.stderr.write(run.stderr)
        run.check_returncode()


def pip_wheel() -> Path:
    """Return the pinned pip among the downloaded wheels; it runs from its wheel."""
    (wheel,) = folder().glob("pip-*.whl")
    return wheel
