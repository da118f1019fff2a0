"""What a job says of itself while it works."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vllm_cluster.weights.agent import state
from vllm_cluster.weights.agent.layout import Layout


@pytest.mark.parametrize(("total_bytes", "left_s"), [(0, None), (300, 1.0)])
def test_no_time_is_left_below_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total_bytes: int, left_s: float | None
) -> None:
    """While files are read for their sums, how large all of them are is not known yet."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    layout = Layout(tmp_path)
    layout.make()
    progress = state.Progress(layout, "m@1", host="node-a")
    progress.enter("reading", total_bytes=total_bytes)
    for bytes_ in (100, 200):
        now[0] += 1.0
        progress.count(bytes_)
    assert progress.value["left_s"] == left_s
