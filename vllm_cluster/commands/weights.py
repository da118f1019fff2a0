"""`vllm-cluster weights`: the model's copies on the hosts, outside of a deploy."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from vllm_cluster.commands.locked import locked
from vllm_cluster.control.context import Context, context, outline
from vllm_cluster.control.remote import as_root
from vllm_cluster.weights.manifest import MANIFEST_SUMMARY_CHARS

_HELP = """The model's copies on the hosts, outside of a deploy.

\b
    vllm-cluster weights list FILE               what lies where, and which unit uses it
    vllm-cluster weights place FILE              bring the model to every host, or finish that
    vllm-cluster weights verify FILE             read every byte, fetch bad pieces from other hosts
    vllm-cluster weights remove FILE REVISION    remove a copy that no unit uses

Exit codes: 0 good, 1 refused or failing, 2 bad input.
"""
_FILE = click.argument("file", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object; progress on stderr.")
_HOST = click.option("--host", "hosts", multiple=True, help="This host alone; may be repeated.")


@click.group(help=_HELP)
def command() -> None:
    """The group; see _HELP."""


@command.command("list", help="What lies on which host, whether it is whole, and who uses it.")
@_FILE
@_JSON
@_HOST
def list_(file: Path, *, as_json: bool, hosts: tuple[str, ...]) -> None:
    """A glance at every copy: names, sizes, times."""
    from vllm_cluster.placing.verify import listed  # noqa: PLC0415  for it alone

    known = outline(file.resolve())
    found = listed(known, _named(known, hosts))
    failed = [words for words in found.values() if isinstance(words, str)]
    if as_json:
        click.echo(json.dumps({"hosts": found, "ok": not failed}, indent=2))
        sys.exit(1 if failed else 0)
    for name, copies in found.items():
        if isinstance(copies, str):
            click.echo(copies, err=True)
        elif not copies:
            click.echo(f"{name}: nothing")
        else:
            for copy in copies:
                click.echo(f"{name}: {_copy(copy)}")
    sys.exit(1 if failed else 0)


def _copy(copy: dict[str, Any]) -> str:
    if "error" in copy:
        return f"{copy['key']}: {copy['error']['reason']}"
    whole = "whole" if copy["ok"] else "NOT whole"
    users = ", ".join(copy["users"]) or "no unit"
    return (
        f"{copy['model']} {copy['revision']}, {copy['identity'][:MANIFEST_SUMMARY_CHARS]}, "
        f"{copy['total_bytes'] / 2**30:.2f} GiB, {whole}, used by {users}"
    )


@command.command("place", help="Bring the model to every host; attaches to what runs already.")
@_FILE
@_JSON
@_HOST
def place(file: Path, *, as_json: bool, hosts: tuple[str, ...]) -> None:
    """Place, show, summarise."""
    from vllm_cluster.placing.place import place as place_model  # noqa: PLC0415  for it alone
    from vllm_cluster.placing.text import summary  # noqa: PLC0415  as above

    known = context(file.resolve())
    named = _named(known, hosts)
    with _alone(known, "place"):
        out = place_model(known, named, _say, in_place=_in_place())
    if as_json:
        click.echo(json.dumps(out.to_json(), indent=2))
    else:
        for line in summary(known, out):
            click.echo(line)
    sys.exit(1 if out.failed else 0)


@command.command("verify", help="Read every byte from the disks of all hosts; mend what is bad.")
@_FILE
@_JSON
@_HOST
@click.option("--no-repair", is_flag=True, help="Say what is bad and leave it.")
def verify(file: Path, *, as_json: bool, hosts: tuple[str, ...], no_repair: bool) -> None:
    """Past the page cache: a vLLM that serves keeps its pages."""
    from vllm_cluster.placing.verify import verify as verify_model  # noqa: PLC0415  for it alone

    known = context(file.resolve())
    named = _named(known, hosts)
    with nullcontext() if no_repair else _alone(known, "verify"):
        out = verify_model(known, named, _say, repair=not no_repair, in_place=_in_place())
    if as_json:
        click.echo(json.dumps(out.to_json(), indent=2))
    else:
        click.echo(f"{out.read_bytes / 2**30:.2f} GiB read")
        for name in out.whole:
            mended = f", mended: {'; '.join(out.damaged[name][:3])}" if name in out.damaged else ""
            click.echo(f"{name}: whole{mended}")
        for words in out.failed.values():
            click.echo(words, err=True)
    sys.exit(1 if out.failed else 0)


@command.command("remove", help="Remove a revision (or a copy by its key) that no unit uses.")
@_FILE
@click.argument("revision")
@_JSON
@_HOST
def remove(file: Path, revision: str, *, as_json: bool, hosts: tuple[str, ...]) -> None:
    """Refused on a host where a unit uses it, with the unit's name."""
    from vllm_cluster.placing.verify import remove as remove_copies  # noqa: PLC0415  for it alone

    known = outline(file.resolve())
    if not known.plan.weights.copied:
        raise click.UsageError("nothing was copied: weights.storage is not nvme")
    named = _named(known, hosts)
    with _alone(known, "remove"):
        came = remove_copies(known, named, revision)
    failed = [w for w in came.values() if w not in {"removed", "not there"}]
    nowhere = all(words == "not there" for words in came.values())
    if as_json:
        click.echo(json.dumps({"hosts": came, "ok": not failed and not nowhere}, indent=2))
    else:
        for name, words in came.items():
            click.echo(words if words.startswith(f"{name}:") else f"{name}: {words}",
                       err=words in failed)  # fmt: skip
    sys.exit(1 if failed or nowhere else 0)


def _named(known: Context, hosts: tuple[str, ...]) -> tuple[str, ...] | None:
    """The hosts that were asked for, None for all. Raises UsageError for unknown ones."""
    unknown = sorted(set(hosts) - set(known.plan.hosts))
    if unknown:
        there = ", ".join(known.plan.hosts)
        raise click.UsageError(f"no such host: {', '.join(unknown)}; there are {there}")
    return hosts or None


def _alone(known: Context, verb: str) -> AbstractContextManager[object]:
    """The lock on all hosts: those that are not asked give what they have."""
    roots = {name: as_root(known.cluster, host) for name, host in known.plan.hosts.items()}
    return locked(f"vllm-cluster weights {verb}", roots)


def _in_place() -> bool:
    return sys.stderr.isatty()


def _say(text: str) -> None:
    click.echo(text, err=True)
