"""Ray: versions, token, nodes, and its units' starts. One fault a test."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.doctor.cases import changed, command, first, sound
from vllm_cluster.doctor.checks import findings
from vllm_cluster.facts.doctor.model import (
    Docker,
)

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


def test_a_unit_that_pauses_between_starts_begins_anew() -> None:
    facts = sound().facts["node-b"]
    unit = replace(
        facts.unit("ray-worker.service"), active="activating", sub="start-pre",
        log=("1.0 node-b attempt[9]: start 9 since ray-worker last held; pausing 300 s before it",),
    )  # fmt: skip
    case = changed(sound(), "node-b", units={**facts.units, unit.name: unit}, docker=Docker())
    [found] = [one for one in findings(case) if one.id == "ray.worker-down"]
    assert found.fix[0].command.startswith("/usr/local/lib/vllm-cluster/attempt held ray-worker")
    assert found.fix[0].command.endswith("; systemctl restart --no-block ray-worker.service")
