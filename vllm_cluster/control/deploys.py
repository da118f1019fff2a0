"""pyinfra run by a command, as a person runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vllm_cluster
from vllm_cluster.spec.source import read


class NoInventoryError(Exception):
    """The description has no inventory beside it."""


def folder() -> Path:
    """The folder of deploys: in the package when installed, beside it in a checkout."""
    package = Path(vllm_cluster.__file__).parent
    installed = package / "_deploys"
    return installed if installed.is_dir() else package.parent / "deploys"


def run_deploy(file: Path, deploy: str, *, data: dict[str, str] | None = None) -> int:
    """Run `deploy` (`restart.py`) on the hosts of the description `file`; its exit code.

    What pyinfra prints is shown as it comes. Raises NoInventoryError, and DescriptionError where
    `file` is no YAML file.
    """
    read(file)  # a directory has no inventory beside it, and `.` not even a name
    inventory = file.with_suffix(".py")
    if not inventory.is_file():
        raise NoInventoryError(
            f"{inventory}: no such file; it hands {file.name} to pyinfra: copy inventories/prod.py"
        )
    # The Python beside whose program pyinfra was installed.
    program = Path(sys.executable).with_name("pyinfra")
    words = [word for name, value in (data or {}).items() for word in ("--data", f"{name}={value}")]
    words += [str(inventory), str(folder() / deploy)]
    command = [str(program), "-y", "--fail-percent", "0", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
