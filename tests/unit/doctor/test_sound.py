"""The recorded sound cluster, and how findings are put in order."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from tests.unit.doctor.cases import changed, first, ids, recorded, sound
from vllm_cluster.doctor.causes import CAUSES, causes_of, depth, ordered
from vllm_cluster.doctor.finding import Finding, on
from vllm_cluster.doctor.reach import Silence
from vllm_cluster.facts.doctor import parse, script
from vllm_cluster.facts.doctor.model import Docker, HostFacts
from vllm_cluster.plan.containers import CONFIG_LABEL


def test_a_sound_cluster_has_no_finding() -> None:
    assert ids(sound()) == []


def test_the_recording_holds_what_the_checks_rest_on() -> None:
    facts = sound().facts["node-a"]
    assert facts.docker.inside["ray-head"].packages == {
        "ray": "2.60.0", "torch": "2.13.0+cpu", "vllm": "0.32.0+cpu"
    }  # fmt: skip
    assert {node.address for node in facts.ray.nodes} == {"10.77.0.11", "10.77.0.12"}
    assert facts.api.completion.status == 200
    assert facts.api.keyless_status == 401
    assert facts.peers["node-b"].ports[6380] == "open"
    assert all(owner.ours for owner in facts.owners)
    assert {owner.port for owner in facts.owners} >= {6379, 6380, 8000, 8265}


def test_no_secret_and_no_foreign_environment_is_in_what_a_host_sends() -> None:
    for name in ("node-a", "node-b"):
        text = recorded(name)
        assert "VLLM_API_KEY" not in text
        assert "Bearer" not in text


def test_causes_make_no_circle() -> None:
    known = {*CAUSES, *(cause for causes in CAUSES.values() for cause in causes)}
    named = [identity for identity in known if "*" not in identity]
    beneath = {
        identity: [other for other in named for pattern in causes_of(identity)
                   if fnmatchcase(other, pattern) and other != identity]
        for identity in named
    }  # fmt: skip
    left = dict(beneath)
    while left:
        free = [identity for identity, causes in left.items() if not set(causes) & set(left)]
        assert free, f"a circle among {sorted(left)}"
        left = {identity: causes for identity, causes in left.items() if identity not in free}


def test_a_silent_host_explains_everything_that_follows_and_comes_first() -> None:
    case = sound()
    head = case.facts["node-a"]
    dead = replace(head.ray.nodes[1], alive=False, message="gone")
    ray = replace(head.ray, nodes=(head.ray.nodes[0], dead))
    peer = replace(head.peers["node-b"], ping="none", ports={6380: "dropped", 47991: "dropped"})
    units = {**head.units, "vllm.service": replace(
        head.units["vllm.service"], active="activating", sub="start-pre")}  # fmt: skip
    case = changed(case, "node-a", ray=ray, peers={"node-b": peer}, units=units)
    case = replace(
        case,
        facts={"node-a": case.facts["node-a"]},
        silent={"node-b": Silence("node-b", "Connection timed out", "ssh node-b")},
    )
    assert first(case).id == "host.unreachable"
    assert set(ids(case)) == {
        "host.unreachable", "network.peer-unreachable", "ray.node-missing", "vllm.waiting"
    }  # fmt: skip


def test_depth_puts_what_others_rest_on_first() -> None:
    assert depth("host.unreachable") < depth("docker.down") < depth("ray.worker-down")
    assert depth("ray.worker-down") < depth("vllm.down")


def test_bare_hosts_before_the_first_deploy_have_nothing_missing() -> None:
    case = sound()
    bare = {
        name: replace(
            facts, files={}, contents={}, secrets={}, docker=Docker(installed=False), units={},
            names={}, nft="", model=HostFacts(name).model, ray=HostFacts(name).ray,
            api=HostFacts(name).api, owners=(),
        )
        for name, facts in case.facts.items()
    }  # fmt: skip
    assert ids(replace(case, facts=bare)) == []


def test_one_bare_host_in_a_deployed_cluster_is_the_cause() -> None:
    case = sound()
    bare = parse("node-b", recorded("node-b"))
    bare = replace(bare, files={}, docker=Docker(installed=False), units={})
    case = replace(case, facts={**case.facts, "node-b": bare})
    assert first(case).id == "host.not-deployed"


def test_the_script_is_sent_with_no_secret_and_ends_where_it_should() -> None:
    case = sound()
    text = script(case.plan, case.plan.hosts["node-a"], salt="s")
    assert "peers=('node-b 10.77.0.12 6380 47991')" in text
    assert text.endswith("main </dev/null\n")


def test_a_unit_that_gave_up_over_a_cause_is_started_by_the_causes_fix() -> None:
    cause = Finding("host.port-taken", "host", "node-b", "", "", fix=on("node-b", "kill 7"))
    start = on("node-b", "systemctl start --no-block ray-worker.service")
    down = Finding("ray.worker-down", "ray", "node-b", "", "it gave up after 9 restarts", fix=start)
    rows = ordered([down, cause])
    assert rows[0][0].fix == (*cause.fix, *start)
    assert rows[1] == (down, rows[0][0])
    loops = replace(down, found="it ends again and again (4 restarts, exit 1)")
    assert ordered([loops, cause])[0][0].fix == cause.fix


def test_of_a_containers_labels_only_ours_is_asked_for() -> None:
    text = script(sound().plan, sound().plan.hosts["node-a"], salt="s")
    assert f'{{{{json (index .Config.Labels "{CONFIG_LABEL}")}}}}' in text
    assert "json .Config.Labels" not in text
    assert sound().facts["node-a"].docker.containers["vllm"].config == "1fac31c7da3fe569"
