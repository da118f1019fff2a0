"""Files of the model, and their readings. One fault a test."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.finding import Step
from vllm_cluster.facts.doctor.model import (
    Unit,
    Verified,
)
from vllm_cluster.facts.doctor.read_host import verified
from vllm_cluster.facts.doctor.script import MARK, VERIFY_TIMER
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan.paths import WEIGHTS_VERIFIED


def test_a_file_of_the_model_that_was_written_to() -> None:
    facts = sound().facts["node-b"]
    model = replace(facts.model, hashes={"config.json": "f" * 64})
    case = changed(sound(), "node-b", model=model)
    assert first(case).id == "model.corrupt"
    # the bad pieces alone, from the other hosts, and no shard of 5 GB for one byte
    mend = Step("here", f"vllm-cluster weights verify {case.description}")
    assert first(case).fix == (mend,)
    weights = replace(case.plan.weights, storage="nfs")
    case = replace(case, plan=replace(case.plan, weights=weights))
    assert [step.on for step in first(case).fix] == ["by hand", "here"]


def test_the_monthly_reading_that_found_other_bytes_is_told_with_its_words() -> None:
    report: dict[str, Any] = {"ended": 1000.0, "ok": False, "copies": [
        {"key": "a@1", "ok": True, "lines": ["a: whole"]},
        {"key": "b@2", "ok": False, "lines": ["b: model.safetensors: bytes 0 to 1048576"]},
    ]}  # fmt: skip
    said = f"{MARK} file {WEIGHTS_VERIFIED}\n{json.dumps(report)}\n{MARK} end\n"
    found = verified(Sections(said))
    assert found == Verified(1000.0, whole=False, words=(report["copies"][1]["lines"][0],))
    case = changed(sound(), "node-b", verified=found)
    assert first(case).id == "model.rotten"
    assert [step.on for step in first(case).fix] == ["here", "node-b"]
    assert ids(changed(sound(), "node-b", verified=replace(found, whole=True))) == []


def test_a_timer_that_does_not_run_is_a_warning() -> None:
    facts = sound().facts["node-b"]
    timer = Unit(VERIFY_TIMER, load="loaded", active="inactive")
    case = changed(sound(), "node-b", units={**facts.units, timer.name: timer})
    assert (first(case).id, first(case).severity) == ("model.unverified", "warning")
