"""Bring the model to every host: look, get it once, spread it, until all have the same.

Jobs run on their own on the hosts. A run that is killed leaves them running; the next run looks
first, attaches to what works, and does what is left.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_cluster.control import lock
from vllm_cluster.control.context import Context, context
from vllm_cluster.control.model import remember
from vllm_cluster.placing.aside import place_aside
from vllm_cluster.placing.first import NoSourceError, obtain
from vllm_cluster.placing.follow import State, failure, follow, passed_by
from vllm_cluster.placing.remote import HostError, Remote, on_all
from vllm_cluster.placing.run import Run, Say
from vllm_cluster.placing.show import Show
from vllm_cluster.placing.spread import Spread, hurt, spread
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.weights.seen import Seen

# A round ends with more hosts that have the model, or with a reason; these many make no headway.
_IDLE_ROUNDS = 2


@dataclass
class Outcome:
    """What a run came to. `failed`: why a host has not the model, by host. Bytes and seconds are
    of what moved between hosts in this run; `carried`: to whom, from whom; `cards_mbit`: what the
    receivers' cards say of themselves."""

    identity: str = ""
    total_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    placed: list[str] = field(default_factory=list)
    moved_bytes: int = 0
    seconds: float = 0.0
    carried: dict[str, dict[str, int]] = field(default_factory=dict)
    cards_mbit: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ok": not self.failed}


def remotes_of(known: Context, names: Collection[str] | None = None) -> list[Remote]:
    """The hosts of the plan, the head first; `names` alone where given."""
    plan = known.plan
    return [
        Remote(known.cluster, host, plan.weights)
        for host in plan.hosts.values()
        if names is None or host.name in names
    ]


def place(
    known: Context, names: Collection[str] | None, say: Say, *, in_place: bool = False
) -> Outcome:
    """Have the model on the hosts `names` (default: all); other hosts help where they can.

    Never raises for a host: `failed` says what is wrong with which. Raises DescriptionError when
    what was obtained is not what the lock file says.
    """
    with alone(known, say) as guard:
        run = Run(known, Show(say, in_place=in_place), say, guard)
        try:
            if known.plan.weights.copied:
                return _Placing(run, names).go()
            return _aside(run, remotes_of(known, names))
        finally:
            run.show.end()


def _aside(run: Run, remotes: Sequence[Remote]) -> Outcome:
    identity, failed = place_aside(run, remotes)
    out = Outcome(identity, failed=failed, placed=[r.name for r in remotes if r.name not in failed])
    if out.placed:
        seen, _ = on_all([r for r in remotes if r.name in out.placed], Remote.look)
        out.total_bytes = max(
            (int(s.copy["total_bytes"]) for s in seen.values() if s.copy), default=0
        )
        _bring_manifest(run.known, remotes, out)
        _record(run.known, out)
    return out


class _StuckError(Exception):
    """Nothing more can be tried; the message says why."""


class _Placing:
    """One run that makes copies."""

    def __init__(self, run: Run, names: Collection[str] | None) -> None:
        self.run, self.known = run, run.known
        self.remotes = remotes_of(run.known)
        self.targets = {r.name for r in self.remotes if names is None or r.name in names}
        self.outcome = Outcome(identity=run.known.plan.weights.identity)
        self.read = False

    def go(self) -> Outcome:
        """Rounds until nothing is missing or nothing helps."""
        idle, before, stuck = 0, 0, ""
        troubles: dict[str, str] = {}
        while True:
            seen, silent = on_all(self.remotes, Remote.look)
            try:
                missing = self._missing(seen)
                idle = idle + 1 if len(missing) == before else 0
                before = len(missing)
                if not missing or idle == _IDLE_ROUNDS:
                    break
                troubles = self._round(seen, missing, idle)
            except (_StuckError, NoSourceError, HostError) as error:
                stuck = str(error)
                break
        for name in self.targets:
            if name in silent:
                self.outcome.failed[name] = str(silent[name])
            elif not self.outcome.identity or seen[name].identity != self.outcome.identity:
                why = troubles.get(name) or seen[name].trouble(self.outcome.identity, "")
                named = why if name in why else f"{name}: {why}"
                self.outcome.failed[name] = stuck or named
        return self._ended(seen)

    def _missing(self, seen: Mapping[str, Seen]) -> list[Remote]:
        """The targets that answer and have not the model; settles which model that is."""
        found = {s.identity: name for name, s in seen.items() if s.identity}
        if not self.outcome.identity and len(found) > 1:
            told = ", ".join(f"{name} has {i[:16]}" for i, name in sorted(found.items()))
            revision = self.known.plan.weights.revision
            raise _StuckError(
                f"nothing says which model {revision} is, and the hosts differ ({told}); remove "
                "the wrong copies: vllm-cluster weights remove"
            )
        self.outcome.identity = self.outcome.identity or next(iter(found), "")
        wanted = self.outcome.identity
        return [
            r for r in self.remotes
            if r.name in self.targets and r.name in seen
            and (not wanted or seen[r.name].identity != wanted)
        ]  # fmt: skip

    def _round(
        self, seen: Mapping[str, Seen], missing: Sequence[Remote], idle: int
    ) -> dict[str, str]:
        """One step: watch what runs, or get the model once, or spread it. Reasons by host."""
        answering = [r for r in self.remotes if r.name in seen]
        busy = {r.name: keys[0] for r in answering if (keys := seen[r.name].running())}
        waiting = [r for r in missing if r.name in busy]
        if waiting:
            self.run.say(f"attached to what runs on {', '.join(r.name for r in waiting)} already")
            return self._troubles(*follow(waiting, busy, self.run.show))
        _, unnoted = on_all(missing, Remote.record)
        missing = [r for r in missing if r.name not in unnoted]
        if not missing:
            return self._troubles({}, unnoted)
        identity = self.outcome.identity
        holders = [r for r in answering if identity and seen[r.name].identity == identity]
        mendable = hurt({r.name: seen[r.name].copy for r in answering}, identity)
        if not holders and mendable and not self.read:
            # Touched and yet right, as when the source of hard links goes: reading tells.
            self.read = True
            self._read_again([r for r in answering if r.name in mendable])
            return self._troubles({}, unnoted)
        if not holders and (idle or len(mendable) < 2):
            name = obtain(self.run, missing, seen)
            remote = next(r for r in self.remotes if r.name == name)
            self.outcome.identity = self.outcome.identity or remote.look().identity
            return self._troubles({}, unnoted)
        states, lost = spread(self.run, Spread(identity, idle), holders, missing)
        # By the hosts' own clocks: from a job's start to the moment its copy was placed.
        times = [s["placed"] - s["started"] for s in states.values() if "placed" in s]
        self.outcome.seconds += max(times, default=0.0)
        self.outcome.moved_bytes += sum(int(s.get("fetched_bytes", 0)) for s in states.values())
        for name, state in states.items():
            given = self.outcome.carried.setdefault(name, {})
            for peer, count in state.get("from_peers", {}).items():
                given[peer] = given.get(peer, 0) + int(count)
            if state.get("card_mbit"):
                self.outcome.cards_mbit[name] = int(state["card_mbit"])
        self.outcome.notes += [n for n in passed_by(states) if n not in self.outcome.notes]
        return self._troubles(states, lost | unnoted)

    def _read_again(self, remotes: Sequence[Remote]) -> None:
        identity = self.outcome.identity
        self.run.say(f"no host has a whole copy; {', '.join(r.name for r in remotes)} read theirs")

        def read(remote: Remote) -> None:
            for state in remote.lines("verify", "--identity", identity):
                if "phase" in state:
                    self.run.show.state(remote.name, state)

        on_all(remotes, read)

    def _troubles(
        self, states: Mapping[str, State], lost: Mapping[str, HostError]
    ) -> dict[str, str]:
        told = {name: str(error) for name, error in lost.items()}
        return told | {name: words for name, s in states.items() if (words := failure(s))}

    def _ended(self, seen: Mapping[str, Seen]) -> Outcome:
        out = self.outcome
        out.placed = [
            r.name for r in self.remotes
            if r.name in self.targets and r.name in seen and seen[r.name].identity == out.identity
            and out.identity
        ]  # fmt: skip
        for name in out.placed:
            copy = seen[name].copy
            out.total_bytes = int(copy["total_bytes"]) if copy else 0
        if out.placed:
            _bring_manifest(self.known, self.remotes, out)
            _record(self.known, out)
        return out


def _bring_manifest(known: Context, remotes: Sequence[Remote], out: Outcome) -> None:
    """Keep the manifest here too, where the model itself is not: doctor compares with it."""
    if known.manifest is not None:
        return
    remote = next(r for r in remotes if r.name in out.placed)
    try:
        done = remote.run(["cat", known.plan.weights.manifest], timeout_s=600)
        remember(done.stdout, out.identity)
    except (HostError, OSError, ValueError) as error:
        words = str(error) if isinstance(error, HostError) else f"{remote.name}: {error}"
        out.notes.append(f"the manifest was not brought to this machine: {words}")


def _record(known: Context, out: Outcome) -> None:
    """Write what a named revision is beside the description."""
    weights = known.plan.weights
    named = known.cluster.description.model.revision is not None or known.source is None
    if out.identity and named:
        lock.record(known.cluster, ModelId(weights.revision, out.identity, out.total_bytes))


def again(known: Context) -> Context:
    """What is known after a run: which model a named revision is, among it."""
    return context(known.cluster.file)


@contextmanager
def alone(known: Context, say: Say) -> Iterator[int]:
    """One run of this machine at a time on a cluster's model; yields the lock's descriptor.

    A push that outlives its run, which was killed, holds the lock until it is through.
    """
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = f"{known.plan.cluster}-{known.plan.weights.model.replace('/', '--')}.lock"
    file = Path(base) / "vllm-cluster" / "weights" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    told = False
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say("another run on this machine places this model; waiting for it")
                told = True
                time.sleep(0.5)
        yield handle
    finally:
        os.close(handle)
