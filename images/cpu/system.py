"""The Debian layer: a minimal root file system with the system's Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from images.archive import FIXED_TIME_S
from images.cpu.recipe import DEBIAN_PACKAGES, SUITE, RecipeError
from vllm_cluster.lab import packages
from vllm_cluster.lab.errors import LabError

_APT = Path("/etc/apt")

# Folders that the image keeps empty: mount points, and what packaging tools leave for themselves.
EMPTY = (
    "dev",
    "etc/apt",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl",
    "usr/share/zoneinfo",
    "var/cache",
    "var/lib/apt",
    "var/log",
    "var/tmp",
)
# Files that say something of the machine that built the image, or that Docker writes itself.
_OF_THE_BUILDER = ("etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/lib/dpkg/status-old")


def sources() -> list[Path]:
    """Return this machine's apt sources that name the suite: they hold its mirror and its keys.

    Raises RecipeError if there are none.
    """
    found = [
        file
        for file in (
            _APT / "sources.list",
            *sorted(_APT.glob("sources.list.d/*.list")),
            *sorted(_APT.glob("sources.list.d/*.sources")),
        )
        if file.is_file() and SUITE in file.read_text().split()
    ]
    if not found:
        raise RecipeError(
            f"no apt source of this machine offers Debian {SUITE}: add one below "
            f"{_APT}/sources.list.d, the image is made of that suite's packages"
        )
    return found


def prepare(say: Callable[[str], None]) -> None:
    """Install mmdebstrap on this machine where it is missing; before minutes of downloads.

    Raises RecipeError where that is not possible.
    """
    if shutil.which("mmdebstrap") is not None:
        return
    try:
        packages.install(["mmdebstrap"], say)
    except LabError as error:
        raise RecipeError(str(error)) from None


def make(root: Path) -> None:
    """Make the root file system at ``root``, which must not exist.

    Raises CalledProcessError if mmdebstrap fails.
    """
    subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--format=directory",
            "--variant=essential",
            f"--include={','.join(DEBIAN_PACKAGES)}",
            *(f'--dpkgopt=path-exclude="/{path}/*"' for path in EMPTY if path.startswith("usr/")),
            SUITE,
            str(root),
            *map(str, sources()),
        ],
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(FIXED_TIME_S)},
    )
    for name in EMPTY:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name in _OF_THE_BUILDER:
        (root / name).unlink(missing_ok=True)
    (root / "etc/machine-id").touch()
