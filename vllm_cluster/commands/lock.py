"""`vllm-cluster lock`: write down what the running hosts are made of."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from vllm_cluster.control import pinned
from vllm_cluster.control.context import Context, context
from vllm_cluster.control.lock import lock_file
from vllm_cluster.control.remote import root_command, ssh_argv
from vllm_cluster.doctor.reach import ANSWER_TIMEOUT_S, Reply, pool, run
from vllm_cluster.facts.pins import parse, script
from vllm_cluster.plan.pins import (
    Pins,
    changes,
    declared_drift,
    host_drift,
    image_drift,
    lacking,
    seen_pins,
)

_HELP = """Write what a rebuild must reproduce beside the description FILE.

Read from its running hosts: system, kernel, packages; and the image and the model that FILE names.
A host that has no deploy behind it is refused, unless it is a standby that is ready: deploy, then
lock. For another image or model under a lock: change FILE, lock, deploy.

Exit codes: 0 written, 1 refused, or a host that does not answer, 2 bad input. With --check: 0 as
locked, 1 something drifted, 2 could not look: no lock, a host that does not answer, bad input.
"""


@click.command(help=_HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Compare, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The lock itself, as JSON.")
def command(file: Path, *, check: bool, as_json: bool) -> None:
    """Where a host does not answer nothing is written: half a lock would lock half a cluster."""
    known = context(file.resolve(), make_secrets=False)
    old = pinned.read(known.cluster)
    if check and old is None:
        hint = f"there is no lock; `vllm-cluster lock {file}` writes one"
        click.echo(f"{lock_file(known.cluster)}: {hint}", err=True)
        sys.exit(2)
    replies = _ask(known)
    silent = {name: reply for name, reply in replies.items() if reply.code != 0}
    for name, reply in silent.items():
        words = reply.err.strip().splitlines()[-1:] or [f"exit code {reply.code}"]
        click.echo(f"{name}: {words[0]}", err=True)
    if silent:
        if not check:
            click.echo("nothing was written: a lock is of all hosts as they run", err=True)
        sys.exit(2 if check else 1)
    seen = {name: parse(reply.out.splitlines()) for name, reply in replies.items()}
    new = _pins(known, seen)
    if not check:
        _refuse_bare(known, old, seen)
        _refuse_two(seen)
    if as_json:
        click.echo(json.dumps(new.to_data(), indent=2, sort_keys=True))
    if check and old is not None:
        sys.exit(_checked(old, new, seen, quiet=as_json))
    wrote = pinned.write(known.cluster, new)
    if not as_json:
        for line in changes(old or Pins(), new) if old else []:
            click.echo(line)
        state = "written" if wrote else "says that already"
        click.echo(f"{lock_file(known.cluster)}: {state}")
    _mention_older(new, seen)


def _ask(known: Context) -> dict[str, Reply]:
    text = script(known.plan.image)

    def one(name: str) -> Reply:
        argv = ssh_argv(known.cluster, known.plan.hosts[name])
        return run([*argv, root_command(known.cluster, "sh -s")], text, ANSWER_TIMEOUT_S)

    names = list(known.plan.hosts)
    with pool(len(names)) as threads:
        return dict(zip(names, threads.map(one, names), strict=True))


def _pins(known: Context, seen: Mapping[str, dict[str, str]]) -> Pins:
    declared = pinned.declared(known)
    ids = _images(seen)
    if known.archive is None and len(ids) == 1:
        # A registry's digest names a manifest; the ID is what runs.
        declared = replace(declared, image={**declared.image, "id": ids.pop()})
    return replace(declared, hosts={name: seen_pins(values) for name, values in seen.items()})


def _images(seen: Mapping[str, dict[str, str]]) -> set[str]:
    return {values["image"] for values in seen.values() if values.get("image")}


def _refuse_bare(known: Context, old: Pins | None, seen: Mapping[str, dict[str, str]]) -> None:
    """End here where hosts have not been deployed: a lock of them would hold almost nothing."""
    bare = lacking(seen, known.plan.image)
    if not bare:
        return
    for name, words in bare.items():
        click.echo(f"{name}: {', '.join(words)}", err=True)
    fix = "deploy, then lock"
    if old is not None and declared_drift(old, pinned.declared(known)):
        # The lock that is there would refuse a deploy of this description.
        fix = "deploy with the locked image and model; then change them, lock and deploy"
    names, has = ", ".join(bare), "has" if len(bare) == 1 else "have"
    click.echo(f"nothing was written: {names} {has} not yet what a lock holds; {fix}", err=True)
    sys.exit(1)


def _refuse_two(seen: Mapping[str, dict[str, str]]) -> None:
    """End here where hosts have different images by the name of the description."""
    if len(_images(seen)) < 2:
        return
    for name, values in seen.items():
        click.echo(f"{name}: its image is {values.get('image') or 'not there'}", err=True)
    click.echo("nothing was written: one name, two images; deploy, then lock", err=True)
    sys.exit(1)


def _checked(old: Pins, new: Pins, seen: Mapping[str, dict[str, str]], *, quiet: bool) -> int:
    drifts = [drift.text() for drift in declared_drift(old, new)]
    for name, locked in old.hosts.items():
        if name in new.hosts:
            found = [*image_drift(old, new, seen[name]), *host_drift(locked, new.hosts[name])]
            drifts += [f"{name}: {drift.text()}" for drift in found]
    for line in drifts:
        click.echo(line, err=quiet)
    if not drifts and not quiet:
        click.echo("as locked")
    return 1 if drifts else 0


def _mention_older(new: Pins, seen: Mapping[str, dict[str, str]]) -> None:
    """A host may not have yet what an upgrade brings; the lock is of what it shall have."""
    for name, values in seen.items():
        if not values.get("image"):
            click.echo(f"{name} has not the image of the description yet: deploy", err=True)
    if "id" not in new.image:
        words = "its name alone, until it is there: deploy, then lock once more"
        click.echo(f"the image is locked by {words}", err=True)
