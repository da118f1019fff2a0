"""How far a job is: a small file that any process of the host may read."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any

from vllm_cluster.weights.agent.layout import Layout, lock_holder, write_json

FINAL = {"done", "failed", "stopped"}
_WINDOW = 10


class Progress:
    """Written about once a second and at every change of phase.

    Phases: starting, checking (what is here already), fetching, reading (a source), syncing,
    serving (has all, waits for others), done, failed, stopped.
    """

    def __init__(self, layout: Layout, key: str, **what: Any) -> None:
        self._layout = layout
        self.path = layout.jobs / f"{key}.json"
        self._marks: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._written = 0.0
        self.value: dict[str, Any] = {
            "key": key,
            "phase": "starting",
            "pid": os.getpid(),
            "started": time.time(),
            "total_bytes": 0,
            "have_bytes": 0,
            "rate_bytes_s": 0.0,
            "left_s": None,
            "from": None,
            "passed_by": {},
            "notes": [],
            "error": None,
            **what,
        }

    @property
    def phase(self) -> str:
        return str(self.value["phase"])

    def enter(self, phase: str, **more: Any) -> None:
        """Begin a phase. The file is replaced whole, so a reader never sees half."""
        self.value.update(phase=phase, **more)
        self._marks.clear()
        self._write()

    def count(self, have_bytes: int, **more: Any) -> None:
        """Report bytes; rate over the last ten seconds and the time left follow."""
        now = time.monotonic()
        if now - self._written < 1.0:
            return
        self._marks.append((now, have_bytes))
        span = now - self._marks[0][0]
        rate = (have_bytes - self._marks[0][1]) / span if span else 0.0
        ahead = self.value["total_bytes"] - have_bytes
        # While files are read for their sums, how many there are is not known yet.
        left = ahead / rate if rate and ahead >= 0 else None
        self.value.update(have_bytes=have_bytes, rate_bytes_s=rate, left_s=left, **more)
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        self.value["updated"] = time.time()
        try:
            write_json(self.path, self.value, sync=False)
        except OSError as exc:
            # A full disk must not end a transfer whose own space is reserved.
            self.value["notes"] = [*self.value["notes"][-20:], f"{self.path}: {exc.strerror}"]


def read_state(layout: Layout, key: str) -> dict[str, Any] | None:
    """A job's last words; `running` says whether a process still holds the job.

    A job whose process is gone without an end is shown as "interrupted".
    """
    try:
        value: dict[str, Any] = json.loads((layout.jobs / f"{key}.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    value["running"] = lock_holder(layout, key) is not None
    if not value["running"] and value["phase"] not in FINAL:
        value["phase"] = "interrupted"
    return value


def all_states(layout: Layout) -> list[dict[str, Any]]:
    if not layout.jobs.is_dir():
        return []
    keys = sorted(path.stem for path in layout.jobs.glob("*.json"))
    return [state for key in keys if (state := read_state(layout, key)) is not None]
