"""Ray: versions, token, nodes, and its units' starts. One fault a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, command, first, sound
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import BY_HAND, Finding
from vllm_cluster.doctor.starting import LAST_START
from vllm_cluster.facts.doctor.model import (
    Docker,
    Recovery,
)
from vllm_cluster.plan.containers import EVERY

TOKEN = "/etc/vllm-cluster/secrets/ray-token"


def test_ray_of_another_version_inside_a_container() -> None:
    facts = sound().facts["node-b"]
    inside = facts.docker.inside["ray-worker"]
    other = replace(inside, packages={**inside.packages, "ray": "2.59.1"})
    docker = replace(facts.docker, inside={"ray-worker": other})
    case = changed(sound(), "node-b", docker=docker)
    assert first(case).id == "ray.version"
    assert first(case).found == "2.59.1"


def test_another_ray_than_described_in_every_container_is_the_descriptions_fault() -> None:
    case = replace(sound(), plan=replace(sound().plan, ray_version="2.59.1"))
    found = first(case)
    assert found.id == "ray.version"
    assert "image.ray: 2.60.0" in found.fix[0].command


def test_python_of_another_patch_level() -> None:
    case = sound()
    for host, name, python in (
        ("node-a", "ray-head", "3.11.2"),
        ("node-b", "ray-worker", "3.11.9"),
    ):
        docker = case.facts[host].docker
        inside = replace(docker.inside[name], python=python)
        case = changed(case, host, docker=replace(docker, inside={**docker.inside, name: inside}))
    found = first(case)
    assert (found.id, found.host, found.found) == ("ray.python", "node-b", "3.11.9")
    assert found.expected == "Python 3.11.2, as on the other hosts"


def test_another_token_on_one_host() -> None:
    case = changed(sound(), "node-b", secrets={TOKEN: "ffff"})
    assert first(case).id == "ray.token"
    assert first(case).host == "node-b"


def test_a_node_in_ray_that_nobody_planned() -> None:
    ray = sound().facts["node-a"].ray
    stranger = replace(ray.nodes[0], address="10.77.0.99")
    case = changed(sound(), "node-a", ray=replace(ray, nodes=(*ray.nodes, stranger)))
    assert first(case).id == "ray.node-foreign"


def test_fewer_gpus_in_ray_than_planned() -> None:
    ray = sound().facts["node-a"].ray
    nodes = tuple(replace(node, gpus=0) for node in ray.nodes)
    case = changed(sound(), "node-a", ray=replace(ray, nodes=nodes))
    assert first(case).id == "ray.gpus"


def test_a_unit_that_gave_up_is_started_with_its_counter_reset() -> None:
    facts = sound().facts["node-b"]
    unit = replace(facts.units["ray-worker.service"], active="failed", result="start-limit-hit")
    units = {**facts.units, "ray-worker.service": unit}
    docker = replace(facts.docker, containers={}, inside={})
    case = changed(sound(), "node-b", units=units, docker=docker)
    assert first(case).id == "ray.worker-down"
    assert command(case).startswith("systemctl reset-failed ray-worker.service;")


S = "node-b systemd[1]: "
ENDED = (
    f"10.0 {S}Starting ray-worker.service - Ray worker of lab...",
    f"20.0 {S}ray-worker.service: Main process exited, code=exited, status=137/n/a",
    f"20.6 {S}ray-worker.service: Scheduled restart job, restart counter is at 4.",
)
BEFORE = 'time="x" level=error msg="error waiting for container: unexpected EOF"'
KILLED = (
    "19.9 node-b docker[3]: 2026-11-30 15:04:32,011\tERR scripts.py:87 --   raylet [exit code=-9]"
)
ANEW = (
    "19.8 node-b vllm-cluster[7]: the Ray session is made anew before start 6 of vllm; the end of "
    "the last one: its log names no cause"
)


def looping(pauses: int, *, ends: tuple[str, ...] = (), starts: int = 9) -> Finding:
    """What is said 10 s after a pause of so many seconds began."""
    facts = sound().facts["node-b"]
    since_s = facts.clock_s - 10
    said = f"start 9 since ray-worker last held; pausing {pauses} s before it"
    log = (f"2.0 node-b docker[2]: {BEFORE}", f"{since_s} node-b attempt[9]: {said}")
    unit = replace(
        facts.unit("ray-worker.service"), active="activating", sub="start-pre", ends=ends, log=log,
    )  # fmt: skip
    case = changed(sound(), "node-b", units={**facts.units, unit.name: unit}, docker=Docker(),
                   recovery={"ray-worker": Recovery(starts=starts)})  # fmt: skip
    [found] = [one for one in findings(case) if one.id == "ray.worker-down"]
    return found


@pytest.mark.parametrize(
    ("pauses", "following"),
    [(300, "it pauses 290 s more before start 9 of 10"), (5, "start 9 of 10 is under way")],
)
def test_a_loop_tells_how_often_it_ended_and_which_start_comes(pauses: int, following: str) -> None:
    assert looping(pauses).found == f"it ends again and again (8 times); {following}"


def test_a_loop_is_told_with_the_end_of_its_last_life() -> None:
    found = looping(300, ends=(*ENDED, KILLED))
    assert found.found.startswith("it ends again and again (8 times, last: status=137/n/a); ")
    assert found.evidence == "raylet [exit code=-9]"
    silent = looping(300, ends=ENDED)
    assert silent.evidence == "ray-worker.service: status=137/n/a; its log names no cause"


def test_a_loop_whose_start_waits_says_for_what() -> None:
    facts = sound().facts["node-b"]
    log = ("30.0 node-b ray-worker[9]: waiting for the Ray head at 10.77.0.11:6379",)
    unit = replace(facts.unit("ray-worker.service"), active="activating", sub="start-pre",
                   in_a_row=4, log=log)  # fmt: skip
    case = changed(sound(), "node-b", units={**facts.units, unit.name: unit}, docker=Docker(),
                   recovery={"ray-worker": Recovery(starts=5)})  # fmt: skip
    [found] = [one for one in findings(case) if one.id == "ray.worker-down"]
    assert found.found.endswith("; start 5 of 10 is waiting for the Ray head at 10.77.0.11:6379")


@pytest.mark.parametrize("sub", ["auto-restart", "auto-restart-queued"])
def test_between_two_starts_of_a_loop_none_is_under_way(sub: str) -> None:
    facts = sound().facts["node-b"]
    unit = replace(facts.unit("ray-worker.service"), active="activating", sub=sub, in_a_row=4,
                   ends=ENDED, log=())  # fmt: skip
    case = changed(sound(), "node-b", units={**facts.units, unit.name: unit}, docker=Docker(),
                   recovery={"ray-worker": Recovery(starts=5)})  # fmt: skip
    [found] = [one for one in findings(case) if one.id == "ray.worker-down"]
    assert found.found == "it ends again and again (4 times, last: status=137/n/a)"


@pytest.mark.parametrize(
    ("log", "first"),
    [((KILLED,), "Mend the cause"), ((), "Wait; it starts"), ((ANEW,), "Wait; it starts")],
)
def test_a_unit_in_a_loop_starts_by_itself_and_begins_anew_only_after_it_is_mended(
    log: tuple[str, ...], first: str
) -> None:
    fix = looping(300, ends=(*ENDED, *log)).fix
    assert [step.on for step in fix] == [BY_HAND, BY_HAND]
    assert fix[0].command.startswith(first)
    assert "on node-b: journalctl --unit=ray-worker.service" in fix[0].command
    held = "/usr/local/lib/vllm-cluster/attempt held ray-worker.service; "
    assert fix[1].command.endswith(
        f" on node-b: {held}systemctl restart --no-block ray-worker.service"
    )


def test_a_start_of_a_loop_that_is_under_way_is_not_told_to_be_ended() -> None:
    fix = looping(5, ends=(*ENDED, KILLED)).fix
    assert [step.on for step in fix] == [BY_HAND]
    assert "restart" not in fix[0].command


def test_a_vllm_that_went_with_its_head_has_nothing_to_mend() -> None:
    facts = sound().facts["node-a"]
    head = facts.unit("ray-head.service")
    stopped = replace(facts.unit("vllm.service"), active="activating", sub="start-post", in_a_row=4,
                      ends=tuple(line.replace("ray-worker", "vllm") for line in ENDED))  # fmt: skip
    gone = replace(head, ends=tuple(line.replace("ray-worker", "ray-head") for line in ENDED))
    units = {**facts.units, stopped.name: stopped, gone.name: gone}
    case = changed(sound(), "node-a", units=units)
    [found] = [one for one in findings(case) if one.id == "vllm.down"]
    assert found.evidence == "Ray's head ended"
    assert found.fix[0].command.startswith("Wait; it starts again by itself")


def test_the_last_start_that_is_told_is_the_units() -> None:
    units = Path(__file__).parents[3] / "templates/etc/systemd/system"
    for name in EVERY:
        limit = f"\nStartLimitBurst={LAST_START}\n"
        assert limit in (units / f"{name}.service.j2").read_text()
