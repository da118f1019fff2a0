"""The lock of a run for commands that reach hosts without pyinfra."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn

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

_SSH_FAILED = 255
# For a beat that is just taking its lock again when the block has ended.
_JOIN_S = 5


class LockedError(Exception):
    """Another run is under way; the text says whose."""


class LostError(LockedError):
    """The lock was lost while this run was at work."""


@dataclass
class Lock:
    """The lock as it is held. `lost`: hosts on which it is not held, until it was taken again;
    `gone`: hosts on which nothing of it stays."""

    lost: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Raise LostError where the lock was lost: call it before what cannot be undone."""
        if self.lost:
            names = ", ".join(sorted(self.lost))
            raise LostError(f"the lock on {names} was lost; run again")


@contextlib.contextmanager
def holding(what: str, roots: Mapping[str, Callable[[str], list[str]]]) -> Iterator[Lock]:
    """Hold the lock on hosts while the block runs; pyinfra started within the block may act too.

    `roots` gives, by host in the description's order, a function from a shell command to the
    argument list that runs it there as root (`ssh … HOST COMMAND`). A host that cannot be reached
    has no lock to take and is left out. Raises LockedError, with nothing changed. Where the lock is
    lost in the block's middle and another run has it, this process ends with 1.
    """
    me = bearer(what)
    run = _Run(me, roots)
    held, lock = run.held, run.lock
    beats: list[threading.Thread] = []
    before = os.environ.get(RUN_VARIABLE)
    try:
        # The first host's lock decides between two runs that begin together.
        names = list(roots)
        for batch in (names[:1], names[1:]):
            with ThreadPoolExecutor() as pool:
                found = dict(zip(batch, pool.map(run.take, batch), strict=True))
            held |= {n: each for n, each in found.items() if isinstance(each, subprocess.Popen)}
            busy = {n: each for n, each in found.items() if isinstance(each, Busy)}
            words = [f"{n}: {each}" for n, each in found.items() if isinstance(each, str)]
            if busy or words:
                failed = f"the lock cannot be taken: {'; '.join(words)}; nothing was changed"
                raise LockedError(refusal(busy) if busy else failed)
        os.environ[RUN_VARIABLE] = me.run
        beats = [threading.Thread(target=run.beat, args=(name,), daemon=True) for name in held]
        for beat in beats:
            beat.start()
        yield lock
    finally:
        run.end()
        for beat in beats:
            beat.join(_JOIN_S)
        if before is None:
            os.environ.pop(RUN_VARIABLE, None)
        else:
            os.environ[RUN_VARIABLE] = before
        for name, process in held.items():
            run.release(name, process)


def _take(
    root: Callable[[str], list[str]], me: Bearer
) -> subprocess.Popen[str] | Busy | str | None:
    """What holds it, who holds it, why a host that answers cannot give it, or None: ours already,
    or the host does not answer."""
    process = subprocess.Popen(
        root(holder(me)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    for line in process.stdout:
        said = answer(line)
        if isinstance(said, Held):
            return process
        if isinstance(said, Busy):
            _end(process)
            ours = said.bearer is not None and said.bearer.run == me.run
            return None if ours else said
    words = process.stderr.read().strip()
    _end(process)
    if process.returncode == _SSH_FAILED:
        return None
    return words or f"exit {process.returncode}"


@dataclass
class _Run:
    """The lock of a run on its hosts, each fed by a thread of its own. A lock that was lost is
    taken again when its host answers; where another run has it meanwhile, this one ends."""

    me: Bearer
    roots: Mapping[str, Callable[[str], list[str]]]
    held: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str) -> subprocess.Popen[str] | Busy | str | None:
        return _take(self.roots[name], self.me)

    def end(self) -> None:
        """No lock is taken again from here on."""
        with self.mutex:
            self.ended.set()

    def release(self, name: str, process: subprocess.Popen[str]) -> None:
        """End a holder, whose file goes where nothing of ours shall stay."""
        _end(process, f"{GONE}\n" if name in self.lock.gone else "")

    def beat(self, name: str) -> None:
        """Feed the holder on a host until the run ends."""
        while not self.ended.wait(BEAT_S):
            well = name not in self.lock.lost and _fed(self.held[name])
            # A holder that was ended meanwhile is not lost.
            if not well and not self.ended.is_set():
                self.lock.lost.add(name)
                self._again(name)

    def _again(self, name: str) -> None:
        try:
            found = self.take(name)
        except OSError:
            return
        with self.mutex:
            if isinstance(found, Busy) and not self.ended.is_set():
                self._end_all(found.text(name))
            if not isinstance(found, subprocess.Popen):
                return
            spare = found
            if not self.ended.is_set():
                spare, self.held[name] = self.held[name], found
                self.lock.lost.discard(name)
        self.release(name, spare)

    def _end_all(self, who: str) -> NoReturn:
        """End this process and what it started: a pool of threads would wait for its commands, and
        SIGINT may be ignored."""
        sys.stderr.write(
            f"the lock of this run was lost: this machine, or its network, was silent for more "
            f"than {EXPIRY_S} s, and {who}. This one ends here; run again when that one has ended\n"
        )
        sys.stdout.flush()
        sys.stderr.flush()
        for child in _children() - {process.pid for process in self.held.values()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        os._exit(1)


def _children() -> set[int]:
    """The processes that this one started, as ps(1) of any system knows them."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "ppid=,pid="], capture_output=True, text=True, check=False
    )  # fmt: skip
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid) for parent, pid in pairs if int(parent) == os.getpid()}


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
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(EXPIRY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
