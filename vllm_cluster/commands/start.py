"""`vllm-cluster start`: the whole cluster, in order."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vllm_cluster.control.deploys import run_deploy


@click.command(
    help="Start the cluster of FILE as it lies on its hosts, and wait for a completion. A "
    "reboot starts it too from now on."
)
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Run deploys/start.py; its exit code is this one's."""
    code = run_deploy(file, "start.py")
    sys.exit(code)
