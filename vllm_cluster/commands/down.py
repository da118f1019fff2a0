"""`vllm-cluster down`: the hosts put back to what they were before this cluster."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from vllm_cluster.commands.locked import locked
from vllm_cluster.control import lock
from vllm_cluster.control.remote import root_command, ssh_to
from vllm_cluster.doctor.network_report import state_file
from vllm_cluster.plan import members, paths
from vllm_cluster.plan.members import Members
from vllm_cluster.removal import run, text
from vllm_cluster.removal.action import Removal
from vllm_cluster.removal.decide import Options, decide
from vllm_cluster.removal.look import Found
from vllm_cluster.removal.run import Job, Target, UnreachableError
from vllm_cluster.spec import Cluster, load

_HELP = """Put the hosts of FILE back to what they were before this cluster.

Shows what goes and what stays, asks, stops everything in order, and removes what the deploy
recorded on each host: units, rules, files that nobody changed since, settings back to their old
values. A file that was there before stays or comes back. Interrupted, the next call finishes it.
Weights stay unless told otherwise; no file system is touched.

\b
    vllm-cluster down FILE                            all hosts, and those that left FILE
    vllm-cluster down FILE --host node-c              one host, in FILE or not any more
    vllm-cluster down FILE --packages --no-keep-weights    as if nothing had ever been there

Exit codes: 0 done, 1 something could not be removed or was refused, 2 bad input.
"""


@dataclass(frozen=True)
class _Look:
    """The hosts that are meant, head first, and what was found there."""

    targets: dict[str, Target]
    found: dict[str, Found]
    removals: dict[str, Removal]


@click.command(help=_HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--host", "hosts", multiple=True, help="This host alone; may be given more than once."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-weights/--no-keep-weights", default=True, help="Default: keep.")
@click.option("--packages", is_flag=True, help="Remove packages that the deploy installed, too.")
@click.option("--dry-run", is_flag=True, help="Show it, and change nothing.")
@click.option("--forget", is_flag=True, help="Of a --host that is gone for good: strike it off.")
@click.option(
    "--json", "as_json", is_flag=True, help="As one JSON object; with --yes or --dry-run."
)
def command(
    file: Path, *, hosts: tuple[str, ...], yes: bool, keep_weights: bool, packages: bool,
    dry_run: bool, forget: bool, as_json: bool,
) -> None:  # fmt: skip
    """Look, show, ask, act. Raises DescriptionError."""
    if as_json and not yes and not dry_run:
        raise click.UsageError("--json answers no questions: add --yes or --dry-run")
    if forget and not hosts:
        raise click.UsageError("--forget needs --host")
    cluster = load(file.resolve())
    options = Options(keep_weights=keep_weights, packages=packages)
    targets = _targets(cluster, hosts)
    if forget:
        with locked("vllm-cluster down --forget", _roots(cluster, {})):
            _forget(cluster, [name for name in targets if name not in cluster.description.hosts])
        return
    seen = _look(cluster, targets, options)
    if not as_json:
        _show(cluster, seen)
    if dry_run or not any(removal.actions for removal in seen.removals.values()):
        if as_json:
            click.echo(json.dumps(text.to_json(seen.removals, None), indent=2))
        return
    if not yes and not click.confirm("Remove this?", default=False):
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)
    _act(cluster, targets, options, as_json=as_json)


def _act(cluster: Cluster, targets: dict[str, Target], options: Options, *, as_json: bool) -> None:
    """Under the lock of a run, and from what is there once it is held."""
    with locked("vllm-cluster down", _roots(cluster, targets)) as held:
        seen = _look(cluster, targets, options)
        jobs = {n: Job(seen.targets[n], seen.found[n], each) for n, each in seen.removals.items()}
        outcomes = run.remove(
            jobs, lambda name, words: click.echo(f"[{name}] {words}", err=True), held.check
        )
        clean = [name for name, outcome in outcomes.items() if not outcome.failed]
        left = [name for name in clean if name not in cluster.description.hosts]
        if left:
            _forget(cluster, left)
        held.gone |= set(clean)
    if as_json:
        click.echo(json.dumps(text.to_json(seen.removals, outcomes), indent=2))
    else:
        for name, outcome in outcomes.items():
            click.echo("\n".join(text.ended(name, outcome)))
        if set(cluster.description.hosts) <= set(clean):
            _say_what_is_here(cluster)
    if len(clean) < len(outcomes):
        click.echo("Not all of it is gone; mend what is named above, and run this again.", err=True)
        sys.exit(1)


def _say_what_is_here(cluster: Cluster) -> None:
    """What this machine keeps of a cluster that is gone."""
    name, folder = cluster.description.cluster, cluster.file.parent
    kept = (f".secrets/{name}", f".state/{name}", lock.lock_file(cluster).name)
    there = [path for path in kept if (folder / path).exists()]
    if there:
        click.echo(
            f"Beside {cluster.file.name} remain: {', '.join(there)} (in {folder}); a deploy uses "
            "them again, remove them if none shall come."
        )
    if state_file(name).exists():
        click.echo(f"So does the last measurement of its network: {state_file(name)}")


def _roots(cluster: Cluster, targets: dict[str, Target]) -> dict[str, Callable[[str], list[str]]]:
    """Whose lock is needed: of the `targets`, and of all that remember one that left."""
    described = _described(cluster)
    if targets and not set(targets) - set(described):
        return {name: target.command for name, target in targets.items()}
    keepers = {name: _target(cluster, name, address) for name, address in described.items()}
    return {name: target.command for name, target in (keepers | targets).items()}


def _described(cluster: Cluster) -> dict[str, str]:
    """Hosts of the description and how SSH reaches them, head first."""
    hosts, head = cluster.description.hosts, cluster.description.head
    order = [head, *(name for name in hosts if name != head)]
    return {name: hosts[name].ssh or str(hosts[name].address) for name in order}


def _targets(cluster: Cluster, chosen: tuple[str, ...]) -> dict[str, Target]:
    """The hosts of the description, head first, and those that left it; or the chosen ones."""
    known = _described(cluster)
    if not chosen or set(chosen) - set(known):
        known |= _who_left(cluster, known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        names = ", ".join(known)
        raise click.BadParameter(
            f"no such host: {', '.join(unknown)}; the description and the hosts know {names}"
        )
    return {
        n: _target(cluster, n, address) for n, address in known.items() if not chosen or n in chosen
    }


def _target(cluster: Cluster, name: str, address: str) -> Target:
    return Target(name, tuple(ssh_to(cluster, address)), lambda line: root_command(cluster, line))


def _who_left(cluster: Cluster, known: dict[str, str]) -> dict[str, str]:
    """Hosts that the others remember and the description has no more."""
    left: dict[str, str] = {}
    for found in _members(cluster, known).values():
        left |= {n: a for n, a in {**found.hosts, **found.left}.items()
                 if n not in known and a not in known.values()}  # fmt: skip
    return left


def _members(cluster: Cluster, known: dict[str, str]) -> dict[str, Members]:
    """What each host that answers says of this cluster, and none of another says."""

    def one(name: str) -> Members | None:
        target = _target(cluster, name, known[name])
        done = run.run(target.command(f"cat {paths.MEMBERS}"), "", run.LOOK_TIMEOUT_S)
        return members.read(done.stdout)

    with ThreadPoolExecutor() as pool:
        found = dict(zip(known, pool.map(one, known), strict=True))
    ours = cluster.description.cluster
    return {n: each for n, each in found.items() if each is not None and each.cluster == ours}


def _look(cluster: Cluster, targets: dict[str, Target], options: Options) -> _Look:
    """Look at all of them at once. Ends the program where one cannot be looked at."""

    def one(target: Target) -> Found | str:
        try:
            return run.found_on(target)
        except UnreachableError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        answers = dict(zip(targets, pool.map(one, targets.values()), strict=True))
    found = {name: each for name, each in answers.items() if isinstance(each, Found)}
    for name, words in answers.items():
        if isinstance(words, str):
            click.echo(f"{name} cannot be looked at: {words}", err=True)
    for name, each in found.items():
        if words := _obstacle(cluster, name, each):
            click.echo(words, err=True)
            answers[name] = words
    if any(isinstance(each, str) for each in answers.values()):
        click.echo("Nothing was changed. `--host NAME` leaves the others out.", err=True)
        sys.exit(1)
    where = cluster.description.weights.directory
    return _Look(
        targets, found, {name: decide(each, where, options) for name, each in found.items()}
    )


def _obstacle(cluster: Cluster, name: str, found: Found) -> str:
    """Why nothing may be removed from a host; empty where nothing is in the way."""
    if found.marked and not found.record.lines:
        units = ", ".join(path.rsplit("/", 1)[1] for path in found.marked)
        return (
            f"{name} has units of ours ({units}) and no record in {paths.OWNED} of what was "
            "there before them; nothing can be put back there"
        )
    says = members.read(found.members)
    if found.nothing or says is None or says.cluster == cluster.description.cluster:
        return ""
    mend = "if the description has only got a new name, deploy first"
    if name not in cluster.description.hosts:
        mend = f"`vllm-cluster down {cluster.file} --host {name} --forget` strikes it off here"
    return (
        f"{name} belongs to {says.cluster} by its {paths.MEMBERS}, not to "
        f"{cluster.description.cluster}; `down` with the description of {says.cluster} "
        f"removes that, or {mend}"
    )


def _show(cluster: Cluster, seen: _Look) -> None:
    for name, removal in seen.removals.items():
        click.echo("\n".join(text.planned(name, removal)))
        if name in cluster.description.hosts and len(seen.removals) < len(
            cluster.description.hosts
        ):
            click.echo(
                f"  {'note':<11}the description still has {name}; the next deploy brings it back"
            )


def _forget(cluster: Cluster, names: list[str]) -> None:
    """Strike hosts that left off the records of the others."""
    known = _described(cluster)
    for name, found in _members(cluster, known).items():
        new = found.without(names)
        if new == found:
            continue
        body = base64.b64encode(new.text().encode()).decode()
        at = paths.MEMBERS
        line = f"echo {body} | base64 -d >{at}.new && mv -f {at}.new {at}\n"
        target = _target(cluster, name, known[name])
        done = run.run(target.command("sh -s"), line, run.LOOK_TIMEOUT_S)
        if done.returncode:
            click.echo(f"{name}: {at} still names them: {done.stderr.strip()}", err=True)
    click.echo(f"{', '.join(names)}: no longer known as a host that left", err=True)
