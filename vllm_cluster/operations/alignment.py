"""The hosts compared with each other, before anything on one of them is started."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State, StateStage
from pyinfra.context import host

from vllm_cluster.facts.alignment import VERSIONS, Alignment
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan.alignment import Expected, Observed, Table, align
from vllm_cluster.plan.alignment_text import to_json, to_lines
from vllm_cluster.plan.pins import HostPins, with_drift

# Metadata alone: importing vLLM takes ten seconds and wants a GPU.
_ASK_IMAGE = """
import importlib.metadata as m, platform
print("python", platform.python_version())
for name in ("ray", "vllm", "torch"):
    try:
        print(name, m.version(name))
    except m.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class Asked:
    """Where to look on a host: the image by its ID or name, the manifest's path, its address."""

    image: str
    manifest: str
    address: str
    nvidia: bool
    locked: bool = False


# What each host of a run answered. A run is a State; its hosts work through an operation
# together, so that all have answered `inspected` before one begins with `agreed`.
_answers: WeakKeyDictionary[State, dict[str, Observed]] = WeakKeyDictionary()


@operation()
def inspected(
    asked: Mapping[str, Asked],
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Ask this host what must be equal on all; read the versions inside its image once."""
    seen = _observe(host.state, host, asked[host.name])
    if not seen.get("image") or seen.get("python"):
        host.noop("this host is known")
        return
    host.log("reads the versions inside the image")
    yield StringCommand(_read_versions(seen.get("image")))
    yield FunctionCommand(_observe_again, (asked[host.name],), {})


def _read_versions(image_id: str) -> str:
    new = f"{VERSIONS}.new"
    return (
        f"{{ echo 'image {image_id}'; docker run --rm --network=none --entrypoint=python3 "
        f"{image_id} -c {shlex.quote(_ASK_IMAGE)}; }} > {new} && sync {new} && "
        f"mv -f {new} {VERSIONS}"
    )


def _observe(state: State, host: Host, asked: Asked) -> Observed:
    sent_s = time.time()
    found = host.get_fact(
        Alignment, image=asked.image, manifest=asked.manifest,
        address=asked.address, nvidia=asked.nvidia, locked=asked.locked,
    )  # fmt: skip
    received_s = time.time()
    # The script began after it was sent and ended before its answer came: whatever offset is
    # between these two fits, and the true one is.
    clock_s = (found.ended_s - received_s, found.began_s - sent_s)
    seen = Observed(found.values, clock_s)
    _answers.setdefault(state, {})[host.name] = seen
    return seen


def _observe_again(state: State, host: Host, asked: Asked) -> bool:
    return bool(_observe(state, host, asked).values)


@operation()
def agreed(
    asked: Mapping[str, Asked],
    expected: Callable[[], Expected],
    locked: Mapping[str, HostPins],
    show: bool = False,
    file: Path | None = None,
) -> Generator[StringCommand, None, None]:
    """Refuse on every host where one red cell is in the table over all of them.

    What a host has shall be as `locked` too. `show` prints the table in any case, `file` gets it
    as JSON.
    """
    observed = _all(host.state, asked)
    table = with_drift(align(observed, expected()), observed, locked)
    if host.state.current_stage == StateStage.Execute and _speaks(host.state, asked):
        if file is not None:
            file.write_text(json.dumps(to_json(table), indent=2) + "\n")
        if show or table.problems:
            _print(table)
    if table.problems:
        yield refuse("the hosts differ. " + " ".join(p.text() for p in table.problems))
        return
    host.noop(f"{len(observed)} hosts agree")


def _all(state: State, asked: Mapping[str, Asked]) -> dict[str, Observed | None]:
    """Answers of all hosts; those left out with --limit are asked if they can be reached.

    A dry run takes hosts in no order: there the last one compares them all.
    """
    answers = _answers.setdefault(state, {})
    if state.current_stage != StateStage.Execute:
        return {name: answers[name] for name in asked if name in answers}
    found: dict[str, Observed | None] = {}
    for name in asked:
        other = state.inventory.get_host(name)
        limited = not state.is_host_in_limit(other)
        if not limited and other not in state.active_hosts:
            found[name] = None
        elif name in answers or _reached(state, other, asked[name]):
            # With --serial the others come later, and are asked here.
            found[name] = answers[name]
        elif not limited:
            found[name] = None
    return found


def _reached(state: State, other: Host, asked: Asked) -> bool:
    try:
        _observe(state, other, asked)
    except PyinfraError as error:
        host.log(f"{other.name} cannot be compared with: {error}")
        return False
    return True


def _speaks(state: State, asked: Mapping[str, Asked]) -> bool:
    """Whether this host is the one that prints for all: the first in order that still runs."""
    active = {other.name for other in state.active_hosts}
    return next((name for name in asked if name in active), "") == host.name


def _print(table: Table) -> None:
    for line in to_lines(table):
        red = "  ! " in line or " !" in line
        if red:
            host.log_styled(line, fg="red")
        else:
            host.log(line)
