"""`vllm-cluster rotate`: new values of generated secrets, for the next deploy to bring."""

from __future__ import annotations

from pathlib import Path

import click

from vllm_cluster.control import secrets
from vllm_cluster.control.typed import deploy_line
from vllm_cluster.spec import load

_NAMES = {name.replace("_", "-"): name for name in secrets.ON_HOSTS}


@click.command(
    help="Make new values of generated secrets of the description FILE. The next deploy brings "
    "them to every host, where Ray and vLLM start anew with them."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, type=click.Choice(sorted(_NAMES)))
def command(file: Path, names: tuple[str, ...]) -> None:
    """Rotate `names`, or all that are generated. Raises DescriptionError; shows no value."""
    cluster = load(file)
    wanted = tuple(_NAMES[name] for name in names) or tuple(
        name
        for name in secrets.ON_HOSTS
        if getattr(cluster.description.secrets, name) == "generate"
    )
    for path in secrets.rotate(cluster, wanted):
        click.echo(f"{path}: a new value")
    click.echo(f"`{deploy_line(file, '--fail-percent', '0')}` brings it to the hosts")
