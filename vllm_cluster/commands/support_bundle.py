"""`vllm-cluster support-bundle`: everything in one archive, secrets taken out."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from vllm_cluster.control.context import context
from vllm_cluster.control.secrets import described
from vllm_cluster.doctor import bundle
from vllm_cluster.doctor.examine import examine


@click.command(
    help="Gather state, findings and logs of the cluster of FILE in one archive. "
    "Exit codes: 0 written, 2 no host answered."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Default: here, with the time.")
def command(file: Path, *, output: Path | None) -> None:
    """Write the archive and say what is in it."""
    if output is not None:
        _writable(output)
    known = context(file.resolve(), make_secrets=False)
    found = examine(file, log_lines=bundle.LOG_LINES)
    name = f"{known.plan.cluster}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    path = output or Path(name)
    names = bundle.write(known, found, path)
    size = path.stat().st_size / 1024
    click.echo(f"{path}: {len(names)} files, {size:.0f} KiB, secrets taken out")
    for entry in names:
        click.echo(f"    {entry}")
    if set(known.secrets) != set(described(known.cluster)):
        click.echo("the cluster's secrets are not on this machine: taken out is what looks like a "
                   "secret, and nothing by its value", err=True)  # fmt: skip
    for host, silence in found.look.silent.items():
        click.echo(f"{host} not seen: {silence.words.splitlines()[-1]}", err=True)
    sys.exit(0 if found.look.facts else 2)


def _writable(output: Path) -> None:
    """Said before the hosts are asked, not after."""
    if output.is_dir():
        raise click.BadParameter(
            f"{output} is a directory; name a file in it", param_hint="--output"
        )
    if not os.access(output.parent, os.W_OK):
        raise click.BadParameter(f"{output.parent}: no such directory, or not writable",
                                 param_hint="--output")  # fmt: skip
