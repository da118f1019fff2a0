"""What is in its first minute comes by itself; after it, and in a loop, it is down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.doctor.cases import changed, first, ids, recorded, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import HERE, Step
from vllm_cluster.doctor.starting import LOOP_RESTARTS, STARTING_S
from vllm_cluster.facts.doctor import parse
from vllm_cluster.facts.doctor.model import Answer, Docker, Recovery

HEAD, WORKER = ("node-a", "ray-head.service"), ("node-b", "ray-worker.service")


def since(case: Case, place: tuple[str, str], seconds: float, **changes: Any) -> Case:
    """`case` with a unit that changed so long ago."""
    host, name = place
    facts = case.facts[host]
    at_s = facts.clock_s - seconds
    unit = replace(facts.unit(name), changed_s=at_s, active_since_s=at_s, **changes)
    return changed(case, host, units={**facts.units, name: unit})


def no_dashboard(case: Case) -> Case:
    ray = replace(case.facts["node-a"].ray, answer=Answer(words="Connection refused"), nodes=())
    return changed(case, "node-a", ray=ray)


def no_worker(case: Case, *, died_s_ago: float | None = None) -> Case:
    """node-b has no living node: none at all, or one that died."""
    head = case.facts["node-a"]
    mine, other = head.ray.nodes
    ended_s = head.clock_s - (died_s_ago or 0)
    dead = replace(other, alive=False, message="Unexpected termination", ended_s=ended_s)
    nodes = (mine,) if died_s_ago is None else (mine, dead)
    return changed(case, "node-a", ray=replace(head.ray, nodes=nodes))


def no_docker(case: Case) -> Case:
    return changed(case, "node-b", docker=Docker(error="Cannot connect to the Docker daemon"))


ACTIVATING = {"active": "activating", "sub": "start-pre"}
MADE = {
    "a dashboard that does not answer yet":
        lambda s, **how: since(no_dashboard(sound()), HEAD, s, **how),
    "a worker that has just started": lambda s, **how: since(no_worker(sound()), WORKER, s, **how),
    "a worker that a new head does not know yet":
        lambda s, **how: since(no_worker(sound()), HEAD, s, **how),
    "a worker that waits for its head":
        lambda s, **how: since(sound(), WORKER, s, **ACTIVATING, **how),
    "a head that starts again": lambda s, **how: since(sound(), HEAD, s, **ACTIVATING, **how),
    "a Docker that starts": lambda s, **how: since(
        no_docker(sound()), ("node-b", "docker.service"), s, **ACTIVATING, **how),
}  # fmt: skip
DOWN = dict(zip(MADE, (
    "ray.dashboard", "ray.node-missing", "ray.node-missing", "ray.worker-down", "ray.head-down",
    "docker.down"), strict=True))  # fmt: skip


@pytest.mark.parametrize("what", MADE)
def test_in_the_first_minute_the_fix_is_to_wait(what: str) -> None:
    case = MADE[what](6)
    rows = ordered(findings(case))
    assert first(case).id == ("docker.starting" if "Docker" in what else "ray.starting")
    assert DOWN[what] not in ids(case)
    assert {step.on for finding, _ in rows for step in finding.fix} == {"by hand"}
    assert first(case).fix[0].command.startswith("Wait;")


OURS_WAIT = {"a worker that waits for its head", "a head that starts again"}
RUN = list(MADE)[:3]


@pytest.mark.parametrize("what", MADE)
def test_after_it_there_is_something_to_do(what: str) -> None:
    case = MADE[what](STARTING_S + 1)
    if what == "a worker that a new head does not know yet":
        assert first(case).host == "node-b"
    found = next(f for f in findings(case) if f.id == DOWN[what])
    if what in OURS_WAIT:
        assert found.fix[0].text().startswith("Mend what it waits for")
    else:
        assert found.fix[0].command.startswith("systemctl ")
    assert not {"ray.starting", "docker.starting"} & set(ids(case))


@pytest.mark.parametrize("what", MADE)
def test_what_ends_again_and_again_is_down_at_once_and_what_runs_again_is_coming(what: str) -> None:
    case = MADE[what](6, in_a_row=LOOP_RESTARTS)
    if what in RUN:
        assert first(case).id == "ray.starting"
        assert DOWN[what] not in ids(case)
    else:
        assert DOWN[what] in ids(case)
        assert not {"ray.starting", "docker.starting"} & set(ids(case))


@pytest.mark.parametrize(("seconds", "identity"), [(6, "ray.starting"), (61, "ray.gpus")])
def test_gpus_that_a_new_node_has_not_told_yet_are_waited_for(seconds: int, identity: str) -> None:
    ray = sound().facts["node-a"].ray
    mine, other = ray.nodes
    case = changed(sound(), "node-a", ray=replace(ray, nodes=(mine, replace(other, gpus=0))))
    found = first(since(case, WORKER, seconds, in_a_row=LOOP_RESTARTS))
    assert (found.id, found.host) == (identity, "node-b")


@pytest.mark.parametrize(("seconds", "where"), [(1, "by hand"), (61, "node-a")])
def test_a_vllm_that_has_only_just_begun_to_serve_is_not_restarted(
    seconds: int, where: str
) -> None:
    gone = Answer(words="Connection refused")
    api = replace(sound().facts["node-a"].api, health=gone, completion=gone)
    case = since(changed(sound(), "node-a", api=api), VLLM, seconds, in_a_row=LOOP_RESTARTS)
    found = first(case)
    assert (found.id, found.fix[0].on) == ("vllm.health", where)
    assert found.fix[0].command.startswith("Wait;") is (where == "by hand")


@pytest.mark.parametrize(
    ("died_s_ago", "identity"), [(3, "ray.starting"), (300, "ray.node-missing")]
)
def test_a_node_that_died_a_moment_ago_is_about_to_come_back(
    died_s_ago: float, identity: str
) -> None:
    case = no_worker(sound(), died_s_ago=died_s_ago)
    case = changed(case, "node-b", raylet=Answer(words="Connection refused"))
    own = [f for f, why in ordered(findings(case)) if f.id == identity]
    assert [f.host for f in own] == ["node-b"]
    if identity == "ray.starting":
        assert first(case).id == identity
        assert "3 s ago" in first(case).found
    else:
        assert first(case).id == "ray.raylet"


def test_a_host_that_has_just_booted_has_not_begun_yet() -> None:
    bare = replace(sound().facts["node-b"].docker, containers={}, inside={})
    case = changed(sound(), "node-b", docker=bare)
    case = since(case, WORKER, 0, active="inactive", sub="dead")
    unit = replace(case.facts["node-b"].unit(WORKER[1]), changed_s=0.0)
    case = changed(case, "node-b", units={**case.facts["node-b"].units, unit.name: unit})
    told = {}
    for uptime_s in (20.0, 400.0):
        system = replace(case.facts["node-b"].system, uptime_s=uptime_s)
        told[uptime_s] = first(changed(case, "node-b", system=system)).id
    assert told == {20.0: "ray.starting", 400.0: "ray.worker-down"}


@pytest.mark.parametrize(("start", "identity"), [(3, "ray.starting"), (4, "ray.worker-down")])
def test_a_pause_before_the_fourth_start_in_a_row_is_a_loop(start: int, identity: str) -> None:
    line = f"1.0 node-b attempt[9]: start {start} since ray-worker last held; pausing 5 s before it"
    case = since(sound(), WORKER, 2, **ACTIVATING, log=(line,))
    assert identity in ids(case)


def test_a_worker_in_a_loop_waits_for_a_head_that_has_just_started() -> None:
    case = since(no_dashboard(sound()), HEAD, 6)
    case = since(case, WORKER, 6, **ACTIVATING, in_a_row=LOOP_RESTARTS)
    rows = ordered(findings(case))
    assert [(f.id, f.host, why.host if why else "") for f, why in rows] == [
        ("ray.starting", "node-a", ""), ("ray.worker-down", "node-b", "node-a"),
    ]  # fmt: skip


STOPPED = {"active": "inactive", "sub": "dead", "result": "success", "exit_status": 1}
VLLM = ("node-a", "vllm.service")


def down(case: Case, *places: tuple[str, str], **how: Any) -> Case:
    """`case` after `vllm-cluster stop`, or where those units alone were stopped."""
    for place in places or (VLLM, WORKER, HEAD):
        case = since(case, place, 2, **STOPPED, **how)
        docker = case.facts[place[0]].docker
        kept = {n: one for n, one in docker.containers.items() if f"{n}.service" != place[1]}
        case = changed(case, place[0], docker=replace(docker, containers=kept, inside={}))
    return no_dashboard(case) if HEAD in (places or (HEAD,)) else case


@pytest.mark.parametrize(
    ("state", "found"),
    [("enabled", "it is stopped"), ("disabled", "it is stopped, and no boot starts it")],
)
def test_a_cluster_that_was_stopped_is_started_as_a_whole(state: str, found: str) -> None:
    case = down(sound(), file_state=state)
    rows = ordered(findings(case))
    causes = [f for f, why in rows if why is None]
    assert [(f.id, f.found) for f in causes] == [("ray.head-down", found)]
    assert {f.id for f, _ in rows} >= {"ray.worker-down", "vllm.down"}
    assert causes[0].fix == (Step(HERE, "vllm-cluster start inventories/prod.yaml"),)


@pytest.mark.parametrize("uptime_s", [20.0, 400.0])
def test_what_was_stopped_for_good_is_started_as_a_whole_after_a_reboot_too(
    uptime_s: float,
) -> None:
    case = down(sound(), file_state="disabled")
    for place in (HEAD, WORKER, VLLM):
        facts = case.facts[place[0]]
        unit = replace(facts.unit(place[1]), changed_s=0.0)
        case = changed(case, place[0], units={**facts.units, unit.name: unit},
                       system=replace(facts.system, uptime_s=uptime_s))  # fmt: skip
    rows = ordered(findings(case))
    causes = [f for f, why in rows if why is None]
    assert [(f.id, f.found) for f in causes] == [
        ("ray.head-down", "it is stopped, and no boot starts it")
    ]
    assert causes[0].fix == (Step(HERE, "vllm-cluster start inventories/prod.yaml"),)
    assert not any(f.id.endswith(".disabled") for f, _ in rows)


@pytest.mark.parametrize(("place", "identity"), [
    (HEAD, "ray.head-down"), (WORKER, "ray.worker-down"), (VLLM, "vllm.down"),
])  # fmt: skip
def test_a_unit_that_somebody_stopped_is_down_at_once(
    place: tuple[str, str], identity: str
) -> None:
    found = first(down(sound(), place))
    assert (found.id, found.found) == (identity, "it is stopped")
    assert found.fix == (Step(HERE, "vllm-cluster start inventories/prod.yaml"),)


CLIENTS = "1.0 node-a vllm[3]: ValueError: bad request of a client"
ENDS = (
    "10.0 node-a systemd[1]: Starting vllm.service - vLLM server of lab: tiny...",
    "20.0 node-a systemd[1]: Stopping vllm.service - vLLM server of lab: tiny...",
    "30.0 node-a systemd[1]: vllm.service: Deactivated successfully.",
)


@pytest.mark.parametrize(("ends", "how"), [(ENDS, "stopped on request"), ((), "inactive dead")])
def test_what_a_stopped_unit_said_before_is_not_why_it_is_down(
    ends: tuple[str, ...], how: str
) -> None:
    found = first(down(sound(), VLLM, log=(CLIENTS,), ends=ends))
    assert (found.id, found.evidence) == ("vllm.down", f"vllm.service: {how}")


ENDING = {"active": "deactivating", "sub": "stop-post", "result": "exit-code", "exit_status": 1}


@pytest.mark.parametrize(("seconds", "in_a_row", "found"), [
    (3, LOOP_RESTARTS, "it ends again and again (3 times, exit 1); it is ending once more"),
    (100, 0, "{} has been deactivating (stop-post) for 100 s"),
])  # fmt: skip
@pytest.mark.parametrize(("place", "identity"), [
    (WORKER, "ray.worker-down"), (VLLM, "vllm.down"),
])  # fmt: skip
def test_what_is_ending_starts_again_by_itself(
    place: tuple[str, str], identity: str, seconds: int, in_a_row: int, found: str
) -> None:
    case = since(sound(), place, seconds, **ENDING, in_a_row=in_a_row, ends=())
    told = next(f for f in findings(case) if f.id == identity)
    assert told.found == found.format(place[1])
    assert told.fix[0].command.startswith("Wait; when it has ended it starts again by itself")


def test_a_vllm_between_two_starts_is_not_loading() -> None:
    case = since(sound(), VLLM, 1, active="activating", sub="auto-restart", started_s=10.0)
    assert first(case).found == "vllm.service has been activating (auto-restart) for 1 s"


def test_a_worker_that_is_stopped_does_not_come_with_its_head() -> None:
    case = down(since(no_worker(sound()), HEAD, 6), WORKER)
    head = case.facts["node-a"]
    waits = replace(head.unit("vllm.service"), active="activating", sub="start-pre")
    rows = ordered(findings(changed(case, "node-a", units={**head.units, waits.name: waits})))
    assert [(f.id, f.host) for f, why in rows if why is None] == [("ray.worker-down", "node-b")]
    assert "ray.starting" not in {f.id for f, _ in rows}
    case = down(since(no_dashboard(no_worker(sound())), HEAD, 6), WORKER)
    causes = [f.id for f, why in ordered(findings(case)) if why is None]
    assert causes == ["ray.starting", "ray.worker-down"]


def test_a_vllm_that_ends_with_its_head_is_waited_for() -> None:
    case = since(sound(), HEAD, 2, **ACTIVATING)
    case = since(case, ("node-a", "vllm.service"), 2, active="deactivating", sub="stop")
    rows = ordered(findings(case))
    assert [(f.id, why.id if why else "") for f, why in rows] == [
        ("ray.starting", ""), ("vllm.waiting", "ray.starting"),
    ]  # fmt: skip


def test_a_vllm_that_waits_for_its_heads_start_was_not_stopped() -> None:
    case = since(down(sound(), VLLM, queued=True), HEAD, 2, **ACTIVATING)
    rows = ordered(findings(case))
    assert [(f.id, why.id if why else "") for f, why in rows] == [
        ("ray.starting", ""), ("vllm.waiting", "ray.starting"),
    ]  # fmt: skip


def test_a_job_that_systemd_has_for_a_unit_is_read() -> None:
    text = recorded("node-a").replace("Id=vllm.service\n", "Id=vllm.service\nJob=77\n")
    read = parse("node-a", text, arrived_s=0.0).units
    assert [name for name, unit in read.items() if unit.queued] == ["vllm.service"]


LOST = "1.0 node-a vllm-cluster[9]: the count of starts, /run/vllm-cluster/units/vllm.starts, {}"
PAUSE = "1.0 node-a attempt[9]: start {} since vllm last held; pausing 300 s before it"


@pytest.mark.parametrize(
    ("sub", "log", "starts"),
    [
        ("start-pre", (PAUSE.format(1),), 0),
        ("start-pre", (LOST.format("holds no number"), PAUSE.format(1)), 0),
        ("start-pre", (LOST.format("cannot be written"), PAUSE.format(3)), 2),
        ("start-post", ("1.0 node-a vllm[9]: loading",), 0),
    ],
)
def test_a_loop_whose_count_cannot_be_kept_is_one_by_systemds_count(
    sub: str, log: tuple[str, ...], starts: int
) -> None:
    place = ("node-a", "vllm.service")
    told = {}
    for restarts in (1, 40):
        case = since(sound(), place, 6, active="activating", sub=sub, log=log, restarts=restarts,
                     in_a_row=max(0, starts - 1))  # fmt: skip
        case = changed(case, "node-a", recovery={"vllm": Recovery(starts=starts)})
        told[restarts] = next(f for f in findings(case) if f.plane == "vllm")
    assert told[1].id in {"vllm.waiting", "vllm.starting"}
    assert (told[40].id, told[40].found[:34]) == (
        "vllm.down",
        "it ends again and again (40 times)",
    )
    assert " of 10" not in told[40].found


def test_a_unit_that_came_back_often_and_counts_anew_is_starting() -> None:
    case = since(sound(), ("node-a", "vllm.service"), 6, active="activating", sub="start-post",
                 restarts=40)  # fmt: skip
    case = changed(case, "node-a", recovery={"vllm": Recovery(starts=1)})
    assert first(case).id == "vllm.starting"
