"""What a run says once more at its end: each refusal once, with the hosts that it was on."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest
from pyinfra.api.operation import OperationMeta
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput, OutputLine

from vllm_cluster.operations import refuse

PARSER = "refused: vLLM does not take its arguments: vllm: error: unrecognized arguments: --x"


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refuse, "_ends", {})
    monkeypatch.setattr(refuse, "_now", {})


@dataclass(frozen=True)
class _Host:
    name: str


def run_of(*words: str, good: bool = False) -> State:
    """A run in which hosts a and b said `words` in an operation."""
    ops = {}
    for name in "ab":
        done = OperationMeta("1", is_change=True)
        lines = [OutputLine("stderr", line) for line in words]
        done.set_complete(good, [], CommandOutput(lines))
        waits = OperationMeta("2", is_change=True)
        each = {
            "1": SimpleNamespace(operation_meta=done),
            "2": SimpleNamespace(operation_meta=waits),
        }
        ops[_Host(name)] = each
    return cast(State, SimpleNamespace(ops=ops))


def test_a_refusal_by_the_hosts_own_program_is_said_once_with_its_hosts() -> None:
    refuse.note_scripts(run_of("usage: vllm", PARSER))
    assert refuse.told() == [f"refused on a, b: {PARSER.removeprefix('refused: ')}"]


def test_one_of_this_side_that_hosts_said_too_is_not_said_twice() -> None:
    refuse.note_end("refused", "a", "vllm.service is masked")
    refuse.note_end("refused", "b", "vllm.service is masked")
    refuse.note_scripts(run_of("refused: vllm.service is masked"))
    assert refuse.told() == ["refused on a, b: vllm.service is masked"]


@pytest.mark.parametrize("good", [True, False])
def test_a_log_in_which_a_refusal_is_not_the_last_word_refuses_nothing(*, good: bool) -> None:
    refuse.note_scripts(run_of("refused: an earlier start", "error: it failed", good=good))
    refuse.note_scripts(run_of(*["refused: and then it went well"] * good, good=good))
    assert refuse.told() == []


def test_a_start_that_failed_ends_with_why_and_where() -> None:
    head = "this start in the log of vllm.service:"
    refuse.note_scripts(run_of("Job failed.", head, "OSError: No space left on device", "Stopped"))
    assert refuse.told() == ["failed on a, b: vllm.service: OSError: No space left on device"]


def test_a_reason_that_says_where_is_given_no_hosts() -> None:
    refuse.note_end("failed", "", "generation 2: vLLM did not start on a: x")
    assert refuse.told() == ["failed: generation 2: vLLM did not start on a: x"]
