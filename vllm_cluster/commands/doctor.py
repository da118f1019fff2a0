"""`vllm-cluster doctor`: what is wrong, in which plane, and the fix. Changes nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from vllm_cluster.doctor import report
from vllm_cluster.doctor.examine import examine
from vllm_cluster.doctor.finding import PLANES

_HELP = """What is wrong with the cluster of the description FILE, in which plane, and the fix.

Reads everything and changes nothing. The first failing line is the cause; what follows from it is
named beneath. Exit codes: 0 sound, 1 failing, 2 could not look.
"""


@click.command(help=_HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option("--plane", multiple=True, type=click.Choice(PLANES), help="Show this plane alone.")
@click.option("--host", multiple=True, help="Show this host alone; all are looked at.")
@click.option("--all", "everything", is_flag=True, help="Show in full what follows from a cause.")
@click.option("--deep", is_flag=True, help="Let DCGM diagnose the GPUs too: half a minute.")
@click.option("--watch", type=click.FloatRange(min=1), metavar="S", help="Again every S seconds.")
def command(
    file: Path, *, as_json: bool, plane: tuple[str, ...], host: tuple[str, ...],
    everything: bool, deep: bool, watch: float | None,
) -> None:  # fmt: skip
    """Look, print, exit. With --watch print whenever something changed, until interrupted."""
    last = ""
    while True:
        found = examine(file, deep=deep)
        unknown = set(host) - set(found.case.plan.hosts)
        if unknown:
            names = ", ".join(found.case.plan.hosts)
            raise click.BadParameter(f"no such host: {', '.join(unknown)}; there are {names}")
        chosen = report.select(found, plane, host)
        shown = report.dumps(found, chosen) if as_json else report.text(
            found, chosen, everything=everything)  # fmt: skip
        if watch is None:
            click.echo(shown)
            sys.exit(found.exit_code)
        state = repr([(f.id, f.host, f.found) for f, _ in chosen])
        if state != last:
            click.echo(f"{time.strftime('%H:%M:%S')}\n{shown}")
        last = state
        time.sleep(watch)
