"""Docker, its containers, and what memory they get. One fault a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.checks import findings
from vllm_cluster.facts.doctor.model import (
    Answer,
    Container,
    Docker,
)


def test_docker_that_does_not_answer_because_of_its_configuration() -> None:
    facts = sound().facts["node-b"]
    docker = replace(facts.docker, error="Cannot connect to the Docker daemon")
    contents = {**facts.contents, "/etc/docker/daemon.json": "{,}"}
    case = changed(sound(), "node-b", docker=docker, contents=contents)
    assert first(case).id == "docker.config"
    assert [step.on for step in first(case).fix] == ["node-b", "here"], "with its own data-root"
    assert "ray.worker-down" not in ids(case)


def test_an_option_in_the_file_and_among_dockers_flags() -> None:
    facts = sound().facts["node-b"]
    words = (
        "1.0 node-b dockerd[9]: unable to configure the Docker daemon with file "
        "/etc/docker/daemon.json: the following directives are specified both as a flag and in "
        "the configuration file: hosts: (from flag: [fd://], from file: [tcp://0.0.0.0:2375])"
    )
    unit = replace(facts.unit("docker.service"), active="failed", result="exit-code", log=(words,))
    docker = Docker(error="Cannot connect to the Docker daemon")
    case = changed(sound(), "node-b", docker=docker, units={**facts.units, unit.name: unit})
    found = first(case)
    assert found.id == "docker.config"
    assert found.found == "hosts in both, so Docker does not start"


def test_a_docker_that_is_down_says_so_in_its_own_words() -> None:
    facts = sound().facts["node-b"]
    log = ("1.0 node-b dockerd[9]: failed to start daemon: error initializing graphdriver",)
    unit = replace(facts.unit("docker.service"), active="failed", result="exit-code", log=log)
    docker = Docker(error="Cannot connect to the Docker daemon")
    case = changed(sound(), "node-b", docker=docker, units={**facts.units, unit.name: unit})
    assert first(case).id == "docker.down"
    assert "graphdriver" in first(case).evidence


@pytest.mark.parametrize(("text", "found"), [('{"log-opts": {"max-size": "10m"}}', False),
                                             ("{}", True)])  # fmt: skip
def test_logs_that_grow_without_end(text: str, *, found: bool) -> None:
    facts = sound().facts["node-b"]
    docker = replace(facts.docker, log_driver="json-file")
    contents = {**facts.contents, "/etc/docker/daemon.json": text}
    case = changed(sound(), "node-b", docker=docker, contents=contents)
    assert ids(case) == (["docker.logs-grow"] if found else [])


def test_containers_that_outlive_docker_are_warned_of_before_they_do() -> None:
    facts = sound().facts["node-b"]
    case = changed(sound(), "node-b", docker=replace(facts.docker, live_restore=True))
    found = first(case)
    assert (found.id, found.severity) == ("docker.live-restore", "warning")
    assert "--live-restore out of ExecStart=" in found.fix[0].command
    contents = {**facts.contents, "/etc/docker/daemon.json": '{"live-restore": true}'}
    edit, reload = first(changed(case, "node-b", contents=contents)).fix
    assert edit.command == 'On node-b, "live-restore": false in /etc/docker/daemon.json'
    assert reload.command == "systemctl reload docker.service"


def test_shared_memory_of_64_megabytes() -> None:
    facts = sound().facts["node-b"]
    inside = replace(facts.docker.inside["ray-worker"], shm_bytes=64 * 2**20)
    case = changed(sound(), "node-b", docker=replace(facts.docker, inside={"ray-worker": inside}))
    assert first(case).id == "memory.shm"
    assert first(case).found == "64 MiB"


def test_limits_below_those_of_the_plan() -> None:
    facts = sound().facts["node-b"]
    inside = replace(facts.docker.inside["ray-worker"], limits={"open files": 1024})
    case = changed(sound(), "node-b", docker=replace(facts.docker, inside={"ray-worker": inside}))
    assert first(case).id == "memory.limits"


def test_a_worker_killed_for_want_of_memory_explains_that_ray_is_down() -> None:
    facts = sound().facts["node-b"]
    log = ("1795971960.5 node-b kernel: Out of memory: Killed process 99 (ray::RayWorkerP)",)
    unit = replace(facts.units["ray-worker.service"], active="activating", sub="auto-restart")
    units = {**facts.units, "ray-worker.service": unit}
    case = changed(sound(), "node-b", kernel_log=log, units=units)
    assert ids(case)[0] == "memory.out"
    assert "ray.worker-down" in ids(case)


@pytest.mark.parametrize(("serves", "severity"), [(True, "warning"), (False, "failing")])
def test_a_kill_is_only_told_while_all_units_run_and_tokens_come(
    *, serves: bool, severity: str
) -> None:
    log = ("4000000000.5 node-b kernel: Out of memory: Killed process 99 (python3)",)
    case = changed(sound(), "node-b", kernel_log=log)
    if not serves:
        case = changed(case, "node-a", api=replace(case.facts["node-a"].api, completion=Answer()))
    found = [f for f in findings(case) if f.id == "memory.out"]
    assert [f.severity for f in found] == [severity]


def test_a_strange_container_that_ran_out_of_memory_is_not_the_clusters() -> None:
    docker = sound().facts["node-b"].docker
    old = Container("old", "1", "2", status="exited", oom_killed=True)
    docker = replace(docker, containers={**docker.containers, "old": old})
    assert ids(changed(sound(), "node-b", docker=docker)) == []
