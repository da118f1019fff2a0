"""Generations of the units on all hosts: looked at, laid beside, switched to, kept."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State, StateStage
from pyinfra.context import host

from vllm_cluster.facts.generations import TOOL, Generations
from vllm_cluster.operations import owned
from vllm_cluster.operations.files import MARK, Directory, File, obstacles
from vllm_cluster.operations.refuse import note_end, refuse
from vllm_cluster.operations.served import say_served
from vllm_cluster.operations.switching import Switch, run
from vllm_cluster.plan import generations
from vllm_cluster.plan.generations import Kept


@dataclass
class _Seen:
    """What the hosts of one run keep, and how a switch of this run went."""

    kept: dict[str, Kept] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)
    reason: str | None = None


_seen: WeakKeyDictionary[State, _Seen] = WeakKeyDictionary()


def _of(state: State) -> _Seen:
    return _seen.setdefault(state, _Seen())


def seen(state: State) -> Mapping[str, Kept]:
    """What the hosts of this run keep, by host, as far as they were asked."""
    return _of(state).kept


@operation()
def inspected() -> Generator[StringCommand, None, None]:
    """Learn what this host keeps."""
    kept = _observe(host.state, host)
    host.noop(f"{len(kept.records)} generations are kept")
    yield from ()


@operation()
def finished() -> Generator[StringCommand | FunctionCommand, None, None]:
    """Finish a switch that nobody finished, on every host in the way its head did."""
    kept = _of(host.state).kept
    mine = kept.get(host.name, Kept())
    if mine.pending is None:
        host.noop("this host is in the middle of no switch")
        return
    forward = generations.decided(kept, host.name)
    if isinstance(forward, str):
        yield refuse(forward)
        return
    end = "it counts, as on its head" if forward else "what was there before comes back"
    host.log(f"a switch was not finished; {end}")
    yield StringCommand(f"{TOOL} over {mine.pending}" if forward else f"{TOOL} back")
    yield FunctionCommand(_observe_again, (), {})


def _observe(state: State, each: Host) -> Kept:
    kept = each.get_fact(Generations)
    _of(state).kept[each.name] = kept
    return kept


def _observe_again(state: State, host: Host) -> bool:
    return _observe(state, host).pending is None


@operation()
def allowed(identity: Callable[[], str], retry: bool) -> Generator[StringCommand, None, None]:
    """Refuse a description that failed before or that a person left, unless it is asked for.

    Asked at the beginning, and again when all is placed: which model a revision is may be known
    only then.
    """
    reason = "" if retry else generations.objection(_of(host.state).kept, identity())
    if reason:
        yield refuse(reason)
        return
    host.noop("nothing is known against this description")


@operation()
def laid(
    identity: Callable[[], str], files: Callable[[], Mapping[str, File | Directory]]
) -> Generator[StringCommand, None, None]:
    """Have the files of a generation beside those that serve.

    Refused where somebody else's are in their way: the host itself puts them there, at the switch.
    """
    name, every = identity(), files()
    wanted = {path: item for path, item in every.items() if isinstance(item, File)}
    whole = {path: (item.mode, item.body) for path, item in wanted.items()}
    every_kept = _of(host.state).kept
    kept = every_kept.get(host.name, Kept())
    there = kept.trees.get(name) == generations.tree_digest(whole)
    if not there or generations.switches(every_kept, name):
        words = obstacles(wanted)
        if words:
            yield refuse(words)
            return
    if there:
        host.noop(f"{len(whole)} files of this generation are kept")
        return
    # They come to their places later, by the host's own hand: `down` must know of them.
    ours = [f"own_file {shlex.quote(path)} {shlex.quote(MARK)} || exit 1" for path in whole]
    command = "\n".join([owned.FILES, *ours, f"{TOOL} lay {name}"])
    yield StringCommand(command, _stdin=json.dumps(whole))


@operation()
def switched(
    switch: Callable[[], Switch], address: str = ""
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Put another generation in the place of the one that serves, on all hosts, or go back.

    `address`: where vLLM answers then, if this host has it, which is said at the end.
    """
    kept, wanted = _of(host.state).kept, switch()
    if not generations.switches(kept, wanted.to):
        host.noop("no other generation serves")
        return
    active = {each.name for each in host.state.active_hosts}
    missing = [name for name in wanted.units if name not in active]
    if missing and host.state.current_stage == StateStage.Execute:
        yield refuse(
            f"another generation is for all hosts at once, and this run has lost or leaves out "
            f"{', '.join(missing)}; mend it, and run without --limit"
        )
        return
    yield FunctionCommand(_switch, (wanted, address), {})


def _switch(state: State, host: Host, switch: Switch, address: str) -> bool:
    """The first host does it for all; the others wait for it here, and share its end."""
    one = _of(state)
    with one.mutex:
        if one.reason is None:
            one.reason = run(state, host, switch, one.kept)
    if one.reason:
        host.log_styled(one.reason, fg="red")
        note_end("failed", "", one.reason)
    elif "vllm" in switch.units.get(host.name, ()):
        say_served(address)
    return not one.reason


@operation()
def recorded(
    identity: Callable[[], str], record: Callable[[], Mapping[str, Any]]
) -> Generator[StringCommand, None, None]:
    """Keep what this host serves now: the way back of the next switch."""
    one = _of(host.state)
    kept = one.kept.get(host.name, Kept())
    if kept.current is not None or one.reason == "":
        host.noop("what serves is kept")
        return
    name = identity()
    whole = {**record(), "number": generations.number_of(one.kept, name)}
    yield StringCommand(f"{TOOL} adopt {name} {shlex.quote(json.dumps(whole))}")


@operation()
def returned(
    switch: Callable[[], Switch], number: int | None, note: str, address: str = ""
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Go back to generation `number`, or to the last before this one that served.

    `address` as of a switch.
    """
    kept = _of(host.state).kept
    plan = switch()
    found = generations.target(kept, plan.head, number)
    if isinstance(found, str):
        yield refuse(found)
        return
    image, model = shlex.quote(found.image), shlex.quote(found.model)
    whole = replace(
        plan,
        to=found.id,
        record={"number": found.number},
        # As they were then; those of the description that is left may be others.
        units=found.units or plan.units,
        group=plan.group if found.group is None else found.group,
        gpus=found.gpus or plan.gpus,
        needs=f"docker image inspect --format there {image} && ls -d {model}",
        note=("left", note),
        # What is asked for by a person is not weighed against what the person leaves.
        measure_s=0,
    )
    yield FunctionCommand(_switch, (whole, address), {})
