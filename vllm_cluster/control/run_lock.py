"""The lock of a run for commands that reach hosts without pyinfra."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from vllm_cluster.control.bearer import RUN_VARIABLE, bearer
from vllm_cluster.plan.run_lock import BEAT_S, EXPIRY_S, Bearer, Busy, Held, answer, holder, refusal


class LockedError(Exception):
    """Another run is under way; the text says whose."""


@dataclass
class Lock:
    """The lock as it is held. `lost`: names of hosts on which it was lost since."""

    lost: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Raise LockedError where the lock was lost: call it before each thing that is changed."""
        if self.lost:
            names = ", ".join(sorted(self.lost))
            raise LockedError(f"the lock on {names} was lost; run again")


@contextlib.contextmanager
def holding(what: str, roots: Mapping[str, Callable[[str], list[str]]]) -> Iterator[Lock]:
    """Hold the lock on hosts while the block runs; pyinfra started within the block may act too.

    `roots` gives, by host in the description's order, a function from a shell command to the
    argument list that runs it there as root (`ssh … HOST COMMAND`). A host that cannot be reached
    has no lock to take and is left out. Raises LockedError, with nothing changed.
    """
    me = bearer(what)
    held: dict[str, subprocess.Popen[str]] = {}
    lock, ended = Lock(), threading.Event()
    before = os.environ.get(RUN_VARIABLE)
    try:
        # The first host's lock decides between two runs that begin together.
        names = list(roots)
        for batch in (names[:1], names[1:]):
            with ThreadPoolExecutor() as pool:
                found = list(pool.map(lambda name: _take(roots[name], me), batch))
            held |= {n: each for n, each in zip(batch, found, strict=True)
                     if isinstance(each, subprocess.Popen)}  # fmt: skip
            busy = {n: each for n, each in zip(batch, found, strict=True) if isinstance(each, Busy)}
            if busy:
                raise LockedError(refusal(busy))
        os.environ[RUN_VARIABLE] = me.run
        threading.Thread(target=_beat, args=(held, lock, ended), daemon=True).start()
        yield lock
    finally:
        ended.set()
        if before is None:
            os.environ.pop(RUN_VARIABLE, None)
        else:
            os.environ[RUN_VARIABLE] = before
        for process in held.values():
            _end(process)


def _take(root: Callable[[str], list[str]], me: Bearer) -> subprocess.Popen[str] | Busy | None:
    process = subprocess.Popen(
        root(holder(me)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None  # noqa: S101
    for line in process.stdout:
        said = answer(line)
        if isinstance(said, Held):
            return process
        if isinstance(said, Busy):
            _end(process)
            ours = said.bearer is not None and said.bearer.run == me.run
            return None if ours else said
    _end(process)
    return None


def _beat(held: dict[str, subprocess.Popen[str]], lock: Lock, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        for name, process in held.items():
            try:
                assert process.stdin is not None  # noqa: S101
                process.stdin.write("\n")
                process.stdin.flush()
            except OSError:
                lock.lost.add(name)


def _end(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(EXPIRY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
