"""`vllm-cluster rollback`: back to an earlier generation, on all hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vllm_cluster.control.deploys import run_deploy


@click.command(
    help="Put the generation before this one, or number N, back on all hosts of the cluster of "
    "FILE. It is there: nothing is fetched. Where it does not answer, this one comes back. A "
    "deploy of the description that was left is refused until it changes, or is asked to retry."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="`status` shows the numbers.")
def command(file: Path, *, to: int | None) -> None:
    """Run deploys/rollback.py; its exit code is this one's."""
    sys.exit(run_deploy(file, "rollback.py", data=None if to is None else {"to": str(to)}))
