"""How a unit ended last, from systemd's own lines."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.doctor.cases import changed, sound
from tests.unit.doctor.test_bundle import examination
from vllm_cluster.doctor import state
from vllm_cluster.doctor.ending import Ending, last_end
from vllm_cluster.facts.doctor.model import Unit

S = "node-a systemd[1]: "
CRASHED = (
    f"10.0 {S}Starting vllm.service - vLLM server of lab: tiny...",
    f"20.0 {S}vllm.service: Main process exited, code=exited, status=1/FAILURE",
    f"20.1 {S}vllm.service: Failed with result 'exit-code'.",
    f"25.0 {S}vllm.service: Scheduled restart job, restart counter is at 1.",
    f"25.1 {S}Starting vllm.service - vLLM server of lab: tiny...",
    "8.0 node-a docker[1]: OSError: No space left on device",
    "15.0 node-a docker[7]: torch.OutOfMemoryError: CUDA out of memory",
    "19.0 node-a docker[7]: RuntimeError: Engine core initialization failed",
)


def ended(*lines: str) -> Ending | None:
    return last_end(Unit("vllm.service", ends=lines))


def test_a_crash_has_its_exit_code_and_the_first_cause_of_that_life() -> None:
    found = ended(*CRASHED)
    assert found == Ending(20.0, "status=1/FAILURE", "torch.OutOfMemoryError: CUDA out of memory")


def test_an_engine_that_dies_with_exit_code_0_did_end() -> None:
    found = ended(
        f"10.0 {S}Starting vllm.service - vLLM server...",
        f"30.0 {S}vllm.service: Deactivated successfully.",
        f"35.0 {S}vllm.service: Scheduled restart job, restart counter is at 1.",
        f"35.1 {S}Starting vllm.service - vLLM server...",
        "29.0 node-a docker[7]: EngineDeadError: EngineCore encountered an issue",
    )
    assert found is not None
    assert found.text() == "ended with 0: EngineDeadError: EngineCore encountered an issue"


def test_a_stop_that_was_asked_for_has_no_cause() -> None:
    found = ended(
        f"10.0 {S}Starting vllm.service - vLLM server...",
        f"30.0 {S}Stopping vllm.service - vLLM server...",
        f"31.0 {S}vllm.service: Main process exited, code=exited, status=143/n/a",
        f"31.1 {S}vllm.service: Deactivated successfully.",
        f"32.1 {S}Starting vllm.service - vLLM server...",
    )
    assert found == Ending(31.0, "stopped on request")


def test_a_unit_that_gave_up_says_so_when_nothing_ran_any_more() -> None:
    found = ended(
        f"8.0 {S}Starting vllm.service - vLLM server...",
        f"9.0 {S}vllm.service: Main process exited, code=exited, status=1/FAILURE",
        f"9.1 {S}vllm.service: Failed with result 'exit-code'.",
        f"11.1 {S}Starting vllm.service - vLLM server...",
        "11.2 node-a vllm-cluster[5]: gave up after 10 starts, because: ValueError: no KV cache",
        f"11.3 {S}vllm.service: Control process exited, code=exited, status=3/NOTIMPLEMENTED",
        f"11.4 {S}vllm.service: Failed with result 'exit-code'.",
        f"11.5 {S}Stopped vllm.service - vLLM server...",
    )
    assert found is not None
    assert found.time_s == 11.3
    assert found.why == "gave up after 10 starts, because: ValueError: no KV cache"


def test_what_never_ended_has_no_end() -> None:
    assert ended() is None
    assert ended(f"10.0 {S}Starting vllm.service - vLLM server...") is None


def test_the_screen_shows_the_last_end_and_why() -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.units["vllm.service"], restarts=1, ends=CRASHED)
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    case = changed(case, "node-a", clock_s=145.0)
    told = state.to_json(examination(case))["hosts"]["node-a"]["units"]["vllm.service"]
    assert told["restarts"] == 1
    assert told["ended_s_ago"] == 125
    assert "ended 2m05s ago: status=1/FAILURE: torch.OutOfMemoryError" in state.text(
        examination(case)
    )
