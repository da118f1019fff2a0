"""What a unit notes of itself comes up in doctor, and in status."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor import reach
from vllm_cluster.doctor.case import Case
from vllm_cluster.facts.doctor.model import Recovery, Unit
from vllm_cluster.facts.doctor.read import parse
from vllm_cluster.facts.doctor.read_services import recovery
from vllm_cluster.facts.doctor.script import MARK, watchdog_of
from vllm_cluster.facts.doctor.sections import Sections

GATHER = Path(reach.__file__).parents[1] / "facts" / "doctor" / "gather"
SAID = f"""{MARK} recovery
vllm gave-up gave up after 10 starts, because: ValueError: Free memory on device
ray-head watchdog watchdog: first
ray-head watchdog watchdog: second
vllm watched 2560 well requests: 0 running
ray-worker watched
ray-worker history 1700000000 ValueError: a leak
{MARK} end
"""


def test_notes_of_units_are_read() -> None:
    found = recovery(Sections(SAID))
    assert found["vllm"].gave_up.endswith("Free memory on device")
    assert found["ray-head"].watchdog == ("watchdog: first", "watchdog: second")
    assert (found["vllm"].watched_s, found["ray-head"].watched_s) == (2560, 0)
    assert found["ray-worker"].again == ((1700000000.0, "ValueError: a leak"),)


@pytest.mark.parametrize(("noted", "in_a_row"), [("vllm starts 4", 3), ("", 0)])
def test_a_unit_that_has_held_ends_for_the_first_time_however_often_it_did_before(
    noted: str, in_a_row: int
) -> None:
    shown = f"{MARK} units\nId=vllm.service\nNRestarts=7\n\nId=docker.service\nNRestarts=2\n"
    found = parse("node-a", f"{MARK} recovery\n{noted}\n{shown}{MARK} end\n").units
    assert (found["vllm.service"].restarts, found["vllm.service"].in_a_row) == (7, in_a_row)
    assert found["docker.service"].in_a_row == 2


def test_what_a_unit_notes_is_told_in_its_words_alone(tmp_path: Path) -> None:
    (tmp_path / "vllm.gave-up").write_text("gave up after 10 starts\n")
    (tmp_path / "vllm.watchdog").write_text(f"{'0f' * 16} start: first\nwatchdog: second\n")
    (tmp_path / "vllm.starts").write_text("4\n")
    (tmp_path / "vllm.history").write_text("1700000000 ValueError: a leak\n")
    shell = f"begin() {{ :; }}; units_state={tmp_path}; . {GATHER / '60-services.sh'}; recovery"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "vllm gave-up gave up after 10 starts",
        "vllm watchdog start: first",
        "vllm watchdog watchdog: second",
        "vllm history 1700000000 ValueError: a leak",
        "vllm starts 4",
    ]


def test_a_unit_that_gave_up_says_why() -> None:
    facts = sound().facts["node-a"]
    gone = {name: one for name, one in facts.docker.containers.items() if name != "vllm"}
    unit = replace(
        facts.unit("vllm.service"), active="failed", sub="failed", result="exit-code",
        restarts=1,
    )  # fmt: skip
    why = "gave up after 10 starts, because: ValueError: Free memory on device"
    case = changed(
        sound(), "node-a", units=facts.units | {unit.name: unit},
        docker=replace(facts.docker, containers=gone), recovery={"vllm": Recovery(gave_up=why)},
    )  # fmt: skip
    assert first(case).id == "vllm.down"
    assert first(case).found == "it gave up after 10 starts"
    assert first(case).evidence == why
    assert "reset-failed vllm.service" in first(case).fix[0].command


def test_what_the_watchdog_ended_is_a_warning_with_its_reason() -> None:
    noted = {"vllm": Recovery(watchdog=("watchdog: no token for 190 s",))}
    case = changed(sound(), "node-a", recovery=noted)
    assert first(case).id == "vllm.was-hung"
    assert first(case).severity == "warning"
    assert "190 s" in first(case).evidence


def under_watch(active: str, *, watched_s: float, active_s: float = 1000) -> Case:
    """vLLM active for so long, its watchdog in that state, last heard of at that uptime."""
    name = watchdog_of("vllm")
    facts = sound().facts["node-a"]
    unit = replace(facts.unit("vllm.service"), active_since_s=facts.clock_s - active_s)
    return changed(
        sound(), "node-a",
        system=replace(facts.system, uptime_s=2000),
        recovery={"vllm": Recovery(watched_s=watched_s)},
        units=facts.units | {unit.name: unit, name: Unit(name, load="loaded", active=active)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("times", "hours_ago", "told"), [(4, 23, True), (3, 1, False), (9, 25, False)]
)
def test_a_unit_that_is_started_again_and_again_is_a_warning_with_the_last_reason(
    times: int, hours_ago: int, *, told: bool
) -> None:
    when_s = sound().facts["node-a"].clock_s - hours_ago * 3600
    again = tuple((when_s, f"ValueError: {number}") for number in range(1, times + 1))
    case = changed(sound(), "node-a", recovery={"vllm": Recovery(again=again)})
    assert ("vllm.flaps" in ids(case)) is told
    if told:
        assert first(case).severity == "warning"
        assert first(case).found == "it was started again 4 times in 24 h"
        assert first(case).evidence.endswith("ValueError: 4")


@pytest.mark.parametrize(("active", "told"), [("inactive", True), ("active", False)])
def test_a_unit_without_its_watchdog(active: str, *, told: bool) -> None:
    assert ("vllm.unwatched" in ids(under_watch(active, watched_s=1998))) is told


@pytest.mark.parametrize("active", ["active", "activating"])
@pytest.mark.parametrize(
    ("watched_s", "active_s", "told"),
    [(1800, 1000, True), (0, 1000, True), (1800, 60, False), (1950, 1000, False)],
)
def test_a_watchdog_that_hears_nothing(
    active: str, watched_s: float, active_s: float, *, told: bool
) -> None:
    case = under_watch(active, watched_s=watched_s, active_s=active_s)
    assert ("vllm.unwatched" in ids(case)) is told
    if told:
        assert "heard nothing from inside" in first(case).found
        assert first(case).severity == "warning"
