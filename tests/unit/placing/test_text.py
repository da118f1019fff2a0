"""A run's summary: the rate, and what it is put against."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.doctor.measure import Flow, Kept, Pair, save
from vllm_cluster.doctor.network_report import state_file
from vllm_cluster.placing.place import Outcome
from vllm_cluster.placing.text import summary

GIB = 2**30


def rate_line(out: Outcome, link_gbit_s: float | None = 25.0) -> str:
    weights = SimpleNamespace(model="m", revision="r", link_gbit_s=link_gbit_s)
    known: Any = SimpleNamespace(plan=SimpleNamespace(weights=weights, cluster="c"))
    return next(line for line in summary(known, out) if "host to host" in line)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def moved(**more: Any) -> Outcome:
    carried = {"b": {"a": 10 * GIB}, "c": {"b": 9 * GIB, "a": GIB}}
    return Outcome(
        "i" * 64, total_bytes=10 * GIB, placed=["a", "b", "c"], moved_bytes=20 * GIB,
        seconds=10.0, carried=carried, **more,
    )  # fmt: skip


def test_the_measured_limit_comes_before_the_cards_word_and_that_before_the_described() -> None:
    assert rate_line(moved()).endswith("8.59 Gbit/s to each, 34% of the 25 Gbit/s described")
    out = moved(cards_mbit={"b": 10_000, "c": 100_000})
    assert rate_line(out).endswith(", 86% of the 10 Gbit/s of b's card")
    slow, fast = Flow(5.0, 9.4, 0), Flow(8.0, 23.0, 0)
    pairs = [Pair("a", "b", there=slow, back=fast), Pair("b", "d", there=slow, back=slow)]
    save(state_file("c"), pairs, Kept())
    assert rate_line(out).endswith(", 91% of the 9.4 Gbit/s measured from a to b")
    # c had most from b, and the other direction of that pair is none of its business
    save(state_file("c"), [*pairs, Pair("c", "b", there=fast, back=Flow(1.0, 9.0, 0))], Kept())
    assert rate_line(out).endswith(", 95% of the 9 Gbit/s measured from b to c")


def test_without_any_limit_the_rate_stands_alone() -> None:
    assert rate_line(moved(), None).endswith("8.59 Gbit/s to each")


def test_pieces_that_were_mended_are_not_counted_as_the_whole_model() -> None:
    out = Outcome(
        "i" * 64, total_bytes=100 * GIB, placed=["a", "b"], moved_bytes=GIB, seconds=10.0,
        carried={"b": {"a": GIB}},
    )  # fmt: skip
    assert "1.00 GiB from host to host in 10 s: 0.86 Gbit/s" in rate_line(out)
