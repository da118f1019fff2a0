"""`vllm-cluster rebuild`: one host made again from nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from vllm_cluster.commands.seed import seed_of
from vllm_cluster.control import pinned
from vllm_cluster.control.context import context
from vllm_cluster.control.run_lock import LockedError
from vllm_cluster.control.typed import shown
from vllm_cluster.rebuild.run import Rebuild, RebuildError
from vllm_cluster.seed.make import boot_words
from vllm_cluster.seed.serve import Server, listen_at

_HELP = """Make one host of the description FILE again from nothing.

Waits for the machine with a bare system, takes its new SSH host key knowingly, deploys the whole
description, and compares the host's fingerprint with the one before. Goes on from where it stopped
when it is run again, unless a deploy has come to its end since, or with --anew.
Exit codes: 0 the same, 1 different or failed, 2 bad input.
"""


@click.command(help=_HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", required=True, metavar="NAME", help="The host, by its name in FILE.")
@click.option("--serve", metavar="ADDRESS:PORT", help="Serve its seed meanwhile.")
@click.option("--yes", is_flag=True, help="Ask nothing but for the host key.")
@click.option(
    "--accept-new-host-key", is_flag=True,
    help="Take the key that answers; refused with ssh.host_keys: yes.",
)  # fmt: skip
@click.option("--anew", is_flag=True, help="Do not go on with a rebuild that has not ended.")
@click.option(
    "--wait-s", type=click.FloatRange(min=1), default=7200, show_default=True, metavar="S",
    help="How long the machine may take.",
)  # fmt: skip
def command(
    *, file: Path, host: str, serve: str | None, yes: bool, accept_new_host_key: bool, anew: bool,
    wait_s: float,
) -> None:  # fmt: skip
    """Ask, then act. Raises DescriptionError."""
    try:
        at = listen_at(serve) if serve is not None else None
    except ValueError as error:
        raise click.UsageError(f"--serve: {error}") from None
    known = context(file.resolve())
    pinned.enforce(known)
    if host not in known.plan.hosts:
        names = ", ".join(known.plan.hosts)
        raise click.UsageError(f"--host: found {host!r}; accepted: one of {names}")
    if accept_new_host_key and known.cluster.description.ssh.host_keys == "yes":
        raise click.UsageError(
            "--accept-new-host-key: ssh.host_keys is yes, which takes no key unasked; accepted: "
            "without it, and install.host_key: seed for a key that is known before"
        )
    work = Rebuild(
        known, known.plan.hosts[host], _say, click.confirm, accept_new_host_key, wait_s, anew
    )
    try:
        work.place()  # a key that cannot be kept is found out before anything is done
    except RebuildError as error:
        raise click.UsageError(str(error)) from None
    try:
        sys.exit(_run(work, at, yes=yes))
    except (RebuildError, LockedError, OSError) as error:
        click.echo(f"vllm-cluster rebuild: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("stopped; the same command goes on from here", err=True)
        sys.exit(1)


def _run(work: Rebuild, at: tuple[str, int] | None, *, yes: bool) -> int:
    before = work.before()
    if before is None:
        _say(f"{work.name}: no fingerprint was kept of it; there will be nothing to compare with")
    else:
        _say(f"{work.name}: to be as it was at {before.when}, {len(before.values)} things")
    role = "the head: the API is away meanwhile" if work.host.role == "head" else "a worker"
    _say(f"{work.name} is {role}. Ray and vLLM start anew with it; other hosts change nothing else")
    # Before the seed: a key is made, and the seed may be served already.
    question = f"Make {work.name} again from nothing?"
    if work.resumed() is not None:
        question = f"Go on with the rebuild of {work.name} that was begun?"
    if not yes and not click.confirm(question):
        raise RebuildError("not confirmed; nothing was done")
    expected = work.expected_key()
    with _seed(work, at):
        lines = work.run(expected, before)
    for line in lines:
        click.echo(f"{work.name}: {line}")
    if before is None:
        return 0
    same = f"{work.name}: the same fingerprint as at {before.when}, {len(before.values)} things"
    click.echo(f"{work.name}: {len(lines)} differences" if lines else same)
    return 1 if lines else 0


@contextlib.contextmanager
def _seed(work: Rebuild, at: tuple[str, int] | None) -> Iterator[None]:
    """Say where the seed is, or serve it while the block runs."""
    cluster, name = work.known.cluster, work.name
    install = cluster.description.install
    if install is None or name not in install.hosts:
        if at is not None:
            seed_of(cluster, name, None)  # says what is missing
        _say(f"{name}: the description has no install section for it; install it as you do")
        yield
        return
    seed, told = seed_of(cluster, name, None)
    if at is None:
        command = f"vllm-cluster seed {shown(cluster.file)} --host {name}"
        _say(f"{name}: its {seed.kind} seed: `{command} --serve ADDRESS:PORT`, or --out DIR")
        yield
        return
    server = Server(seed, *at, _say)
    _say(f"boot {name} with:\n  {boot_words(seed, told, server.url)}")
    try:
        yield
    finally:
        server.close()


def _say(text: str) -> None:
    click.echo(text, err=True)
