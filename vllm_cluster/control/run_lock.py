"""The lock of a run for commands that reach hosts without pyinfra."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from vllm_cluster.control.bearer import RUN_VARIABLE, bearer
from vllm_cluster.plan.run_lock import (
    BEAT_S,
    EXPIRY_S,
    GONE,
    Bearer,
    Busy,
    Held,
    answer,
    holder,
    refusal,
)


class LockedError(Exception):
    """Another run is under way; the text says whose."""


class LostError(LockedError):
    """The lock was lost while this run was at work."""


@dataclass
class Lock:
    """The lock as it is held. `lost`: hosts on which it is not held, until it was taken again;
    `taken`: by whom it is held on such a host now; `gone`: hosts on which nothing of it stays."""

    lost: set[str] = field(default_factory=set)
    taken: dict[str, Busy] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Raise LockedError where the lock was lost: call it before what cannot be undone."""
        if self.taken:
            raise self.ended()
        if self.lost:
            names = ", ".join(sorted(self.lost))
            raise LostError(f"the lock on {names} was lost; run again")

    def ended(self) -> LostError:
        """Why the run that held it ended in its middle."""
        told = "; ".join(busy.text(name) for name, busy in self.taken.items())
        return LostError(
            f"the lock of this run was lost: this machine, or its network, was silent for more "
            f"than {EXPIRY_S} s, and {told}. This one ended; run again when that one has"
        )


@contextlib.contextmanager
def holding(what: str, roots: Mapping[str, Callable[[str], list[str]]]) -> Iterator[Lock]:
    """Hold the lock on hosts while the block runs; pyinfra started within the block may act too.

    `roots` gives, by host in the description's order, a function from a shell command to the
    argument list that runs it there as root (`ssh … HOST COMMAND`). A host that cannot be reached
    has no lock to take and is left out. Raises LockedError: with nothing changed, or out of the
    block's middle where a lock was lost and another run has it.
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
        for name in held:
            beat = _Beat(name, roots[name], me, held, lock, ended)
            threading.Thread(target=beat.run, daemon=True).start()
        yield lock
    except KeyboardInterrupt:
        if lock.taken:
            raise lock.ended() from None
        raise
    finally:
        ended.set()
        if before is None:
            os.environ.pop(RUN_VARIABLE, None)
        else:
            os.environ[RUN_VARIABLE] = before
        for name, process in held.items():
            _end(process, f"{GONE}\n" if name in lock.gone else "")


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


@dataclass
class _Beat:
    """What feeds the holder on one host. A lock that was lost is taken again when its host answers;
    where another run has it meanwhile, this one ends as if by Ctrl-C, and so does what it started.
    """

    name: str
    root: Callable[[str], list[str]]
    me: Bearer
    held: dict[str, subprocess.Popen[str]]
    lock: Lock
    ended: threading.Event

    def run(self) -> None:
        while not self.ended.wait(BEAT_S):
            well = self.name not in self.lock.lost and _fed(self.held[self.name])
            # A holder that was ended meanwhile is not lost.
            if not well and not self.ended.is_set():
                self.lock.lost.add(self.name)
                self._again()
            if self.lock.taken:
                return

    def _again(self) -> None:
        found = _take(self.root, self.me)
        if isinstance(found, Busy):
            self.lock.taken[self.name] = found
            if not self.ended.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif found is not None:
            _end(self.held[self.name])
            self.held[self.name] = found
            self.lock.lost.discard(self.name)


def _fed(process: subprocess.Popen[str]) -> bool:
    try:
        assert process.stdin is not None  # noqa: S101
        process.stdin.write("\n")
        process.stdin.flush()
    except (OSError, ValueError):
        return False
    return process.poll() is None


def _end(process: subprocess.Popen[str], last_word: str = "") -> None:
    if process.stdin is not None and last_word:
        with contextlib.suppress(OSError):
            process.stdin.write(last_word)
            process.stdin.flush()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(EXPIRY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
