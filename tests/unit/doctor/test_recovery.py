"""What a unit notes of itself comes up in doctor, and in status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.facts.doctor.model import Recovery, Unit
from vllm_cluster.facts.doctor.read_services import recovery
from vllm_cluster.facts.doctor.script import MARK, watchdog_of
from vllm_cluster.facts.doctor.sections import Sections

SAID = f"""{MARK} recovery
vllm gave-up gave up after 10 starts, because: ValueError: Free memory on device
ray-head watchdog watchdog: first
ray-head watchdog watchdog: second
{MARK} end
"""


def test_notes_of_units_are_read() -> None:
    found = recovery(Sections(SAID))
    assert found["vllm"].gave_up.endswith("Free memory on device")
    assert found["ray-head"].watchdog == ("watchdog: first", "watchdog: second")


def test_a_unit_that_gave_up_says_why() -> None:
    facts = sound().facts["node-a"]
    gone = {name: one for name, one in facts.docker.containers.items() if name != "vllm"}
    unit = replace(
        facts.unit("vllm.service"), active="failed", sub="failed", result="exit-code",
        restarts=9,
    )  # fmt: skip
    why = "gave up after 10 starts, because: ValueError: Free memory on device"
    case = changed(
        sound(), "node-a", units=facts.units | {unit.name: unit},
        docker=replace(facts.docker, containers=gone), recovery={"vllm": Recovery(gave_up=why)},
    )  # fmt: skip
    assert first(case).id == "vllm.down"
    assert first(case).found == "it gave up after 9 restarts"
    assert first(case).evidence == why
    assert "reset-failed vllm.service" in first(case).fix[0].command


def test_what_the_watchdog_ended_is_a_warning_with_its_reason() -> None:
    noted = {"vllm": Recovery(watchdog=("watchdog: no token for 190 s",))}
    case = changed(sound(), "node-a", recovery=noted)
    assert first(case).id == "vllm.was-hung"
    assert first(case).severity == "warning"
    assert "190 s" in first(case).evidence


@pytest.mark.parametrize(("active", "told"), [("inactive", True), ("active", False)])
def test_a_unit_without_its_watchdog(active: str, *, told: bool) -> None:
    def case() -> Case:
        name = watchdog_of("vllm")
        facts = sound().facts["node-a"]
        return changed(
            sound(), "node-a",
            units=facts.units | {name: Unit(name, load="loaded", active=active)},
        )  # fmt: skip

    assert ("vllm.unwatched" in ids(case())) is told
