"""`vllm-cluster seed`: what an installer, or a cloud image at its first boot, is told of a host."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vllm_cluster.control import pinned
from vllm_cluster.seed import host_key, put
from vllm_cluster.seed.make import Seed, boot_words, make
from vllm_cluster.seed.serve import Server, listen_at
from vllm_cluster.seed.values import KINDS, Kind, Values, default_kind, section, values
from vllm_cluster.spec import Cluster, load


def seed_of(cluster: Cluster, host: str, kind: Kind | None) -> tuple[Seed, Values]:
    """The seed of `host`; its kernel is the one of the lock. Raises DescriptionError."""
    chosen = kind or default_kind(cluster)
    pair = None
    kernel = pinned.host(cluster, host).kernel
    values(cluster, host, chosen)  # refused before a key is made
    if section(cluster).host_key == "seed":
        pair = host_key.kept(cluster, host) or host_key.make(cluster, host)
    told = values(cluster, host, chosen, host_key=pair, kernel=kernel)
    return make(chosen, told), told


@click.command(
    help="Write what an installer is told of one host of the description FILE: Ubuntu's "
    "(autoinstall), Debian's (preseed), or cloud-init's in a cloud image. Asks no host."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", required=True, metavar="NAME", help="The host, by its name in FILE.")
@click.option("--kind", type=click.Choice(KINDS), help="Default: the system's own installer.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Write the files there, for a USB stick.",
)  # fmt: skip
@click.option(
    "--iso", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write an image labelled CIDATA; not for preseed.",
)  # fmt: skip
@click.option("--serve", metavar="ADDRESS:PORT", help="Serve by HTTP until it was fetched.")
def command(
    *,
    file: Path,
    host: str,
    kind: Kind | None,
    out: Path | None,
    iso: Path | None,
    serve: str | None,
) -> None:
    """Exactly one of --out, --iso and --serve; without one the files are shown."""
    if sum(option is not None for option in (out, iso, serve)) > 1:
        raise click.UsageError("found several of --out, --iso, --serve; accepted: one of them")
    try:
        at = listen_at(serve) if serve is not None else None
    except ValueError as error:
        raise click.UsageError(f"--serve: {error}") from None
    made, told = seed_of(load(file), host, kind)
    if made.kind == "preseed" and iso is not None:
        raise click.UsageError(
            "--iso: Debian's installer looks for no such image; accepted: --serve ADDRESS:PORT, or "
            "--out DIR and the file in the root of the installer's initrd"
        )
    try:
        _put(made, told, out, iso, at)
    except FileExistsError as error:
        click.echo(f"{error}: is there already; move it away, or name another place", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"{error.filename or serve or out or iso}: {error.strerror}", err=True)
        sys.exit(1)


def _put(
    seed: Seed, told: Values, out: Path | None, iso: Path | None, at: tuple[str, int] | None
) -> None:
    if out is not None:
        for path in put.directory(seed, out):
            click.echo(path)
    elif iso is not None:
        put.iso(seed, iso)
        more = ", and `autoinstall` on the kernel's line" if seed.kind == "autoinstall" else ""
        click.echo(f"{iso}: plug it in as a disk or a CD{more}")
    elif at is not None:
        _serve(seed, told, *at)
    else:
        for name, text in seed.files.items():
            click.echo(f"# ---- {name}\n{text}")
    if seed.secret and at is None:
        click.echo(
            f"It holds the private SSH host key of {seed.host}: keep it to yourself.", err=True
        )


def _serve(seed: Seed, told: Values, address: str, port: int) -> None:
    server = Server(seed, address, port, lambda text: click.echo(text, err=True))
    click.echo(f"boot {seed.host} with:\n  {boot_words(seed, told, server.url)}")
    click.echo("serving until it was fetched; Ctrl-C ends it", err=True)
    try:
        server.wait()
        click.echo(f"{seed.host} has its seed", err=True)
    except KeyboardInterrupt:
        click.echo("ended before it was fetched whole", err=True)
        sys.exit(1)
    finally:
        server.close()
