"""`vllm-cluster support-bundle`: everything in one archive, secrets taken out."""

from __future__ import annotations

import time
from pathlib import Path

import click

from vllm_cluster.control.context import context
from vllm_cluster.doctor import bundle
from vllm_cluster.doctor.examine import examine


@click.command(help="Gather state, findings and logs of the cluster of FILE in one archive.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Default: here, with the time.")
def command(file: Path, *, output: Path | None) -> None:
    """Write the archive and say what is in it."""
    known = context(file.resolve())
    found = examine(file, log_lines=bundle.LOG_LINES)
    name = f"{known.plan.cluster}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    path = output or Path(name)
    names = bundle.write(known, found, path)
    size = path.stat().st_size / 1024
    click.echo(f"{path}: {len(names)} files, {size:.0f} KiB, secrets taken out")
    for entry in names:
        click.echo(f"    {entry}")
