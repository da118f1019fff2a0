"""How far every host is: a line each, rewritten in place on a terminal, now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from vllm_cluster.weights.agent.commands import progress_line

Say = Callable[[str], None]
_EVERY_S = 10.0
_REDRAW_S = 0.5


class Show:
    """Takes the hosts' states as they come, from any thread."""

    def __init__(self, say: Say, *, in_place: bool = False) -> None:
        self._say = say
        self._in_place = in_place
        self._lock = threading.Lock()
        self._lines: dict[str, str] = {}
        self._told: dict[str, tuple[str, float]] = {}
        self._drawn = 0
        self._drawn_s = 0.0

    def state(self, host: str, state: Mapping[str, Any]) -> None:
        """A host's state as the agent writes it."""
        line = progress_line({**_EMPTY, **state, "host": host})
        phase, now = str(state["phase"]), time.monotonic()
        with self._lock:
            if self._in_place:
                self._lines[host] = line
                self._draw(now)
                return
            before, told_s = self._told.get(host, ("", 0.0))
            if phase != before or now - told_s >= _EVERY_S:
                self._told[host] = (phase, now)
                self._say(line)

    def end(self) -> None:
        """Leave what was drawn; what follows is written beneath."""
        with self._lock:
            if self._in_place and self._lines:
                self._draw(self._drawn_s + _REDRAW_S)
            self._lines, self._drawn = {}, 0
            self._told = {}

    def _draw(self, now: float) -> None:
        if now - self._drawn_s < _REDRAW_S:
            return
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = "".join(f"\x1b[2K{line[:150]}\n" for line in self._lines.values())
        sys.stderr.write(up + text)
        sys.stderr.flush()
        self._drawn, self._drawn_s = len(self._lines), now


_EMPTY: dict[str, Any] = {
    "total_bytes": 0, "have_bytes": 0, "rate_bytes_s": 0.0, "left_s": None, "from": None,
    "passed_by": {}, "complaints": [], "error": None, "key": "",
}  # fmt: skip
