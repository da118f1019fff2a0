"""Progress of a long build, a line a step, with the seconds since the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Prints what is being done and how long each part took; usable from several threads."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print ``text`` behind the seconds since this object was made."""
        with self._lock:
            print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Announce ``text``, run the body, then print how many seconds it took."""
        self.say(f"{text} ...")
        start = time.monotonic()
        yield
        self.say(f"{text}: {time.monotonic() - start:.1f} s")
