"""`vllm-cluster stop`: the whole cluster, in order."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vllm_cluster.control.deploys import run_deploy


@click.command(
    help="Stop the cluster of FILE in order: vLLM, workers, head. Running requests may "
    "finish, within serve.shutdown_timeout_s; new ones are refused. A reboot starts "
    "it again, unless --keep-down is given."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--keep-down", is_flag=True, help="Down after a reboot too, until `start` or a deploy."
)
def command(file: Path, *, keep_down: bool) -> None:
    """Run deploys/stop.py; its exit code is this one's."""
    code = run_deploy(file, "stop.py", data={"keep_down": "yes"} if keep_down else None)
    if code == 0:
        start = f"`vllm-cluster start {file}`"
        after = f"a reboot starts it again, and so does {start}"
        if keep_down:
            after = f"a reboot does not start it, {start} does"
        click.echo(f"stopped; {after}")
    sys.exit(code)
