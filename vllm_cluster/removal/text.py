"""A removal and its outcome as people and scripts read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_cluster.removal.action import Removal
from vllm_cluster.removal.run import Outcome

_WIDTH = 11


def planned(name: str, removal: Removal) -> Iterator[str]:
    """What will be done on a host, and what stays there."""
    yield name
    if not removal.actions:
        yield "  nothing of this cluster is here"
    short: dict[str, list[str]] = {}
    for action in removal.actions:
        short.setdefault(action.verb, []).append(action.what)
    for verb, names in short.items():
        yield from _listed(verb, names)
    for kept in removal.kept:
        yield f"  {'keeps':<{_WIDTH}}{kept.what}: {kept.why}"


def _listed(verb: str, names: list[str]) -> Iterator[str]:
    for at, name in enumerate(names):
        yield f"  {verb if at == 0 else '':<{_WIDTH}}{name}"


def ended(name: str, outcome: Outcome) -> Iterator[str]:
    """How it went on a host."""
    yield f"{name}: {len(outcome.done)} done, {len(outcome.failed)} failed"
    for what, why in outcome.kept:
        yield f"  {'kept':<{_WIDTH}}{what}: {why}"
    for what, why in outcome.failed:
        yield f"  {'FAILED':<{_WIDTH}}{what}: {why}"


def to_json(
    removals: Mapping[str, Removal], outcomes: Mapping[str, Outcome] | None
) -> dict[str, Any]:
    """`hosts.NAME`: `actions`, `keeps`, and once it was done `done`, `kept`, `failed`."""
    hosts: dict[str, Any] = {}
    for name, removal in removals.items():
        hosts[name] = {
            "actions": [
                {"phase": a.phase, "verb": a.verb, "what": a.what} for a in removal.actions
            ],
            "keeps": [{"what": kept.what, "why": kept.why} for kept in removal.kept],
        }
        if outcomes is not None:
            outcome = outcomes[name]
            pairs = {"kept": outcome.kept, "failed": outcome.failed}
            hosts[name] |= {"done": outcome.done} | {
                key: [{"what": what, "why": why} for what, why in values]
                for key, values in pairs.items()
            }
    return {"hosts": hosts}
