"""`vllm-cluster restart`: the whole cluster, in order."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vllm_cluster.control.deploys import run_deploy


@click.command(
    help="Restart vLLM and Ray of the cluster of FILE in order. Running requests may "
    "finish, within serve.shutdown_timeout_s; new ones are refused meanwhile."
)
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Run deploys/restart.py; its exit code is this one's."""
    code = run_deploy(file, "restart.py")
    sys.exit(code)
