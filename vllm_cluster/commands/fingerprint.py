"""`vllm-cluster fingerprint`: what each host consists of, and whether it is what it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from pyinfra.api.exceptions import FactProcessError

from vllm_cluster.doctor.reach import at_addresses
from vllm_cluster.facts import fingerprint as fact
from vllm_cluster.plan.fingerprint import Fingerprint, differences, digest
from vllm_cluster.spec import load

_HELP = """What hosts consist of: packages, files, units, rules, images, weights, kernel.

Two runs of one description end in the same fingerprint, and so does a machine that was wiped and
made again. What a host makes up by itself (keys, identities, caches, logs) is no part of it, and
of secrets only that they are there.

\b
    vllm-cluster fingerprint FILE --json >before.json
    vllm-cluster fingerprint FILE --compare before.json    a line for each difference

Exit codes: 0 equal, 1 different, 2 bad input, or a host that does not answer.
"""
# The files under /etc are hashed, on a slow disk too.
_TIMEOUT_S = 300


@click.command(help=_HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--host", "hosts", multiple=True, help="This host alone; may be given more than once."
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option(
    "--compare", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With what --json wrote earlier.",
)  # fmt: skip
def command(file: Path, *, hosts: tuple[str, ...], as_json: bool, compare: Path | None) -> None:
    """Look, print, exit. Raises DescriptionError."""
    cluster = load(file.resolve())
    described = cluster.description.hosts
    unknown = [name for name in hosts if name not in described]
    if unknown:
        names = ", ".join(described)
        raise click.BadParameter(f"no such host: {', '.join(unknown)}; there are {names}")
    chosen = {
        name: host.ssh or str(host.address)
        for name, host in described.items()
        if not hosts or name in hosts
    }
    earlier = _read(compare, chosen) if compare else {}
    script = fact.script(cluster.description.weights.directory)
    replies = at_addresses(cluster, chosen, dict.fromkeys(chosen, script), _TIMEOUT_S)
    found: dict[str, dict[str, str]] = {}
    for name, reply in replies.items():
        if reply.code:
            click.echo(f"{name}: {reply.err.strip() or f'ended with {reply.code}'}", err=True)
            continue
        try:
            found[name] = fact.parse(reply.out.splitlines())
        except FactProcessError as error:
            click.echo(f"{name}: {error}", err=True)
    changed = {n: differences(earlier[n], each) for n, each in found.items() if n in earlier}
    click.echo(json.dumps(_json(found, changed), indent=2) if as_json else _text(found, changed))
    sys.exit(2 if len(found) < len(replies) else 1 if any(changed.values()) else 0)


def _read(path: Path, chosen: Iterable[str]) -> dict[str, Fingerprint]:
    """Fingerprints of the chosen hosts as --json wrote them. Raises click.BadParameter."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {name: dict(read["hosts"][name]["values"]) for name in chosen}
    except (OSError, ValueError, TypeError) as error:
        raise click.BadParameter(f"{path} is not what --json writes: {error}") from error
    except KeyError as error:
        raise click.BadParameter(f"{path} has no fingerprint of {error}") from error


def _json(found: dict[str, dict[str, str]], changed: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "hosts": {
            name: {"digest": digest(each), "values": dict(sorted(each.items()))}
            | ({"differences": changed[name]} if name in changed else {})
            for name, each in found.items()
        }
    }


def _text(found: dict[str, dict[str, str]], changed: dict[str, list[str]]) -> str:
    lines = []
    for name, each in found.items():
        kinds: dict[str, int] = {}
        for key in each:
            kind = key.partition(" ")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        verdict = "" if name not in changed else "different; " if changed[name] else "equal; "
        lines.append(f"{name}  {digest(each)[:16]}  {verdict}{counts}")
        lines += [f"  {line}" for line in changed.get(name, [])]
    return "\n".join(lines)
