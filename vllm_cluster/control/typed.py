"""Paths and command lines as a person types them in the directory where the program was started."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from vllm_cluster.control.deploys import folder


def shown(path: Path) -> str:
    """`path` from the current directory, or from the root where that is shorter."""
    whole = path.absolute()
    return min(os.path.relpath(whole), str(whole), key=len)


def deploy_line(file: Path, *options: str) -> str:
    """The command that brings the hosts to the description `file`."""
    paths = (file.with_suffix(".py"), folder() / "cluster.py")
    return shlex.join(["pyinfra", "-y", *options, *map(shown, paths)])
