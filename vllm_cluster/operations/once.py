"""What is done once for all hosts of a run, by the first that comes to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from pyinfra.api.state import State

Result = TypeVar("Result")


@dataclass
class _Turn(Generic[Result]):
    lock: threading.RLock = field(default_factory=threading.RLock)
    results: list[Result] = field(default_factory=list)


class Once(Generic[Result]):
    """A piece of work and what came out of it, by run.

    The others wait for the first, whether hosts work in parallel, in batches or one after the
    other. Where it raises, the next host tries again.
    """

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[State, _Turn[Result]] = WeakKeyDictionary()

    def of(self, state: State, work: Callable[[], Result]) -> Result:
        """The result of `work` in this run, done now or before."""
        turn = self._turns.setdefault(state, _Turn())
        with turn.lock:
            if not turn.results:
                turn.results.append(work())
            return turn.results[0]
