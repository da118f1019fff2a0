"""What follows from the generations that hosts keep."""

from __future__ import annotations

import json

import pytest

from vllm_cluster.plan import generations
from vllm_cluster.plan.generations import Kept, Record, read


def record(
    number: int, status: str = "good", reason: str = "", *, served: bool = False,
    since_s: float | None = None,
) -> Record:  # fmt: skip
    return Record(
        number, f"g{number}", status, reason, vllm="0.33.0", head="a", hosts=("a", "b"),
        good_s=17.0 if served or status == "good" else None, since_s=since_s,
    )  # fmt: skip


def kept(
    current: str | None, *records: Record, pending: str | None = None, phase: str = ""
) -> Kept:
    every = {each.id: each for each in records}
    return Kept(current, pending, every, dict.fromkeys(every, "digest"), phase=phase)


def test_numbers_are_the_clusters_not_a_hosts() -> None:
    hosts = {"a": kept("g2", record(1), record(2)), "b": kept(None)}
    assert generations.number_of(hosts, "g2") == 2
    assert generations.number_of(hosts, "new") == 3
    assert generations.number_of({"a": Kept()}, "new") == 1


def test_a_host_without_any_joins_and_does_not_switch() -> None:
    assert not generations.switches({"a": Kept(), "b": Kept()}, "g1")
    assert not generations.switches({"a": kept("g1", record(1)), "b": Kept()}, "g1")
    assert generations.switches({"a": kept("g1", record(1)), "b": Kept()}, "g2")


def test_what_failed_or_was_left_is_not_tried_again_unasked() -> None:
    hosts = {"a": kept("g1", record(1), record(2, "failed", "no completion"))}
    said = generations.objection(hosts, "g2")
    assert "generation 2" in said
    assert "failed: no completion" in said
    assert said.endswith("the same run with `--data retry=yes` (make upgrade INV=… RETRY=yes)")
    assert generations.objection(hosts, "g1") == ""
    assert generations.objection(hosts, "g3") == ""
    cut_off = {"a": kept("g1", record(1), record(2, "interrupted", "no verdict"))}
    assert generations.objection(cut_off, "g2") == ""


def test_rollback_goes_to_the_last_good_one_before() -> None:
    hosts = dict.fromkeys(
        ("a", "b"), kept("g4", record(1), record(2), record(3, "failed", "x"), record(4))
    )
    found = generations.target(hosts, "a", None)
    assert isinstance(found, Record)
    assert found.number == 2
    asked = generations.target(hosts, "a", 1)
    assert isinstance(asked, Record)
    assert asked.number == 1


@pytest.mark.parametrize("status", ["switching", "interrupted", "failed"])
def test_a_rollback_that_did_not_end_can_be_repeated(status: str) -> None:
    served, tried = record(1, status, served=True), record(2, "failed", "x")
    found = generations.target(dict.fromkeys("ab", kept("g3", served, tried, record(3))), "a", None)
    assert found == served


def test_what_a_person_left_is_no_way_back_by_itself() -> None:
    left = record(2, "left", served=True)
    hosts = dict.fromkeys("ab", kept("g1", record(1), left))
    assert "there is no generation" in str(generations.target(hosts, "a", None))
    assert generations.target(hosts, "a", 2) == left


def test_the_head_decides_how_a_switch_ends() -> None:
    both = record(1), record(2, "switching")
    accepted = kept("g1", *both, pending="g2", phase="accepted")
    halted = kept("g1", *both, pending="g2", phase="halted")
    assert generations.decided({"a": kept("g2", *both), "b": accepted}, "b") is True
    assert generations.decided({"a": kept("g1", *both), "b": accepted}, "b") is False
    assert generations.decided({"a": halted, "b": accepted}, "b") is False
    assert generations.decided({"a": halted, "b": accepted}, "a") is False
    # `over` came to its last line and not past it.
    torn = kept("g2", *both, pending="g2", phase="halted")
    assert generations.decided({"a": torn, "b": accepted}, "b") is False
    assert generations.decided({"b": halted}, "b") is False
    assert "run without --limit when a answers" in str(generations.decided({"b": accepted}, "b"))


def test_rollback_says_why_it_cannot() -> None:
    one = {"a": kept("g1", record(1))}
    assert "kept are 1" in str(generations.target(one, "a", None))
    assert "serves already" in str(generations.target(one, "a", 1))
    assert "nothing is deployed here yet" in str(generations.target({"a": Kept()}, "a", None))
    assert "no generation serves" in str(generations.target({"a": kept(None, record(1))}, "a", 1))
    new_host = {"a": kept("g2", record(1), record(2)), "b": kept("g2", record(2))}
    assert "b has not kept generation 1" in str(generations.target(new_host, "a", None))
    both = dict.fromkeys(("a", "b"), kept("g2", record(1), record(2)))
    assert "had its head on a" in str(generations.target(both, "b", None))
    fewer = {"a": both["a"]}
    assert "ran on b too" in str(generations.target(fewer, "a", None))


def test_summary_names_what_serves() -> None:
    hosts = dict.fromkeys(("a", "b"), kept("g1", record(1), record(2, "failed", "ValueError: x")))
    assert generations.summary(hosts, "a", serves=True) == "serving generation 1 (vLLM 0.33.0, g1)"
    mixed = {"a": kept("g2", record(1), record(2)), "b": kept("g1", record(1), record(2))}
    assert "b has another" in generations.summary(mixed, "a")
    assert generations.summary({"a": Kept()}, "a") == ""


@pytest.mark.parametrize(
    ("newest", "said"),
    [
        (record(2, "failed", "no token", since_s=1796066000),
         "2026-11-30 19:13 UTC: generation 2 failed because no token"),
        (record(2, "interrupted", "no verdict", since_s=1796066000),
         "2026-11-30 19:13 UTC: generation 2 interrupted because no verdict"),
        (record(2, "failed", "no token"), "generation 2 failed because no token"),
        (record(2, "left", "rolled back by x on y, 2026-11-30 19:13 UTC", since_s=1796066000),
         "generation 2 left because rolled back by x on y, 2026-11-30 19:13 UTC"),
        (record(2, "switching", since_s=1796066000), ""),
    ],
)  # fmt: skip
def test_what_came_to_nothing_is_told_with_its_time(newest: Record, said: str) -> None:
    assert generations.setback(dict.fromkeys("ab", kept("g1", record(1), newest)), "a") == said
    assert generations.setback(dict.fromkeys("ab", kept("g2", record(1), newest)), "a") == ""
    assert generations.setback({"a": Kept()}, "a") == ""


def test_summary_says_of_what_lies_there_that_it_does_not_serve_while_it_does_not() -> None:
    hosts = dict.fromkeys("ab", kept("g1", record(1)))
    place = "generation 1 (vLLM 0.33.0, g1) is in place"
    assert generations.summary(hosts, "a", serves=False) == f"{place}; nothing serves now"
    assert generations.summary(hosts, "a", serves=None) == place


@pytest.mark.parametrize(
    ("phase", "status", "serves", "said"),
    [
        ("begun", "switching", True,
         "serving generation 1 (vLLM 0.33.0, g1); "
         "a switch to generation 2 (vLLM 0.33.0, g2) has begun"),
        ("halted", "switching", False,
         "switching from generation 1 to generation 2 (vLLM 0.33.0, g2); nothing serves now"),
        ("accepted", "good", True,
         "switching from generation 1 to generation 2 (vLLM 0.33.0, g2)"),
        ("halted", "failed", False,
         "going back from generation 2 to generation 1 (vLLM 0.33.0, g1); nothing serves now"),
    ],
)  # fmt: skip
def test_summary_says_how_far_a_switch_is(
    phase: str, status: str, said: str, *, serves: bool
) -> None:
    both = record(1), record(2, status, "x")
    hosts = dict.fromkeys("ab", kept("g1", *both, pending="g2", phase=phase))
    assert generations.summary(hosts, "a", serves=serves) == said


@pytest.mark.parametrize(
    ("failed_s", "run_s", "back"),
    [(150, 100, True), (100, 100, True), (90, 100, False), (None, 100, False), (150, 0, False)],
)
def test_summary_says_that_a_run_goes_back_of_what_failed_in_that_run(
    failed_s: float | None, run_s: float, *, back: bool
) -> None:
    hosts = dict.fromkeys("ab", kept("g1", record(1), record(2, "failed", "x", since_s=failed_s)))
    said = generations.summary(hosts, "a", serves=False, runs={"b": run_s})
    assert said.endswith("; nothing serves now")
    assert said.startswith("going back from generation 2 to generation 1 ") is back
    serving = generations.summary(hosts, "a", serves=True, runs={"b": run_s})
    assert serving == "serving generation 1 (vLLM 0.33.0, g1)"


def test_summary_calls_no_host_another_while_the_head_has_decided_and_others_have_not_heard() -> (
    None
):
    both = record(1), record(2)
    hosts = {"a": kept("g2", *both), "b": kept("g1", *both, pending="g2", phase="accepted")}
    assert generations.summary(hosts, "a", serves=True) == (
        "serving generation 2 (vLLM 0.33.0, g2); b has not heard of it yet"
    )


def test_the_tools_line_is_read() -> None:
    line = json.dumps({
        "current": "g1", "pending": {"from": "g1", "to": "g2", "phase": "halted"},
        "records": [{"id": "g1", "number": 1, "status": "good", "tokens_per_s": 12.5, "good_s": 17,
                     "since_s": 16, "units": {"a": ["ray-head", "vllm"]}, "group": True,
                     "gpus": 2}],
        "trees": {"g1": "x"}, "checked": ["g1"],
    })  # fmt: skip
    found = read(line)
    assert (found.current, found.pending, found.trees, found.checked) == (
        "g1", "g2", {"g1": "x"}, ("g1",),
    )  # fmt: skip
    assert found.serving is not None
    assert (found.phase, found.serving.tokens_per_s, found.serving.good_s) == ("halted", 12.5, 17)
    one = found.serving
    assert one.since_s == 16
    assert (one.units, one.group, one.gpus) == ({"a": ("ray-head", "vllm")}, True, 2)
    assert read("") == Kept()
