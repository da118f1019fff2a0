"""`vllm-cluster status`: the cluster on one screen."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from vllm_cluster.doctor import state
from vllm_cluster.doctor.examine import examine

_LOG_LINES = 40


@click.command(
    help="The cluster of FILE on one screen. Exit codes as doctor's; 1 "
    "also where nothing is deployed yet."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option("--watch", type=click.FloatRange(min=1), metavar="S", help="Redraw every S seconds.")
def command(file: Path, *, as_json: bool, watch: float | None) -> None:
    """Print it. With --watch redraw until interrupted."""
    while True:
        found = examine(file, log_lines=_LOG_LINES, keyless=False)
        shown = state.dumps(found) if as_json else state.text(found)
        if watch is None:
            click.echo(shown)
            sys.exit(state.exit_code(found))
        click.clear()
        click.echo(shown)
        time.sleep(watch)
