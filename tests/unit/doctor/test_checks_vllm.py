"""vLLM: waiting, hung, busy, and what it was started with. One fault a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, first, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import Finding
from vllm_cluster.facts.doctor import script
from vllm_cluster.facts.doctor.model import (
    Answer,
    Recovery,
)
from vllm_cluster.plan import paths

ENV = "/etc/vllm-cluster/cluster.env"


@pytest.mark.parametrize(
    ("lines", "expected", "found"),
    [
        (("waiting: docker.service is inactive",), "everything", "waiting: docker.service is"),
        (("waiting for 2 GPUs: NVIDIA-SMI has failed",), "everything", "waiting for 2 GPUs: NV"),
        (("waiting for 2 GPUs; Ray shows: 1",), "2 GPUs in Ray", "Ray shows 1"),
        (("waiting for 2 GPUs; Ray does not answer: Connection refused",), "2 GPUs in Ray",
         "Ray does not answer: Connection refused"),
        (("waiting for 2 GPUs; Ray shows: 1", "start 3 since vllm.service last held"),
         "everything", "start 3"),
        ((), "everything", "it says nothing yet"),
    ],
)  # fmt: skip
def test_what_vllm_waits_for_is_what_its_log_says(
    lines: tuple[str, ...], expected: str, found: str
) -> None:
    facts = sound().facts["node-a"]
    log = tuple(f"1795971000.{n} node-a script[9]: {line}" for n, line in enumerate(lines))
    unit = replace(facts.units["vllm.service"], active="activating", sub="start-pre",
                   log=("1795970999.1 node-a systemd[1]: Starting vllm.service", *log))  # fmt: skip
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    waiting = next(f for f in findings(case) if f.id == "vllm.waiting")
    assert waiting.expected.startswith(expected)
    assert waiting.found.startswith(found)


def replicas() -> Case:
    """A vLLM on each host, without Ray; both answer."""
    case = sound()
    head = case.facts["node-a"]
    vllm = case.plan.hosts["node-a"].containers["vllm"]
    unit, container = head.unit("vllm.service"), head.docker.containers["vllm"]
    for name, facts in case.facts.items():
        case = changed(
            case, name, units={**facts.units, unit.name: unit}, api=head.api,
            docker=replace(facts.docker, containers={"vllm": container}, inside={}),
        )  # fmt: skip
    hosts = {name: replace(host, units=("vllm",), containers={"vllm": vllm})
             for name, host in case.plan.hosts.items()}  # fmt: skip
    return replace(case, plan=replace(case.plan, backend="mp", replicas=2, hosts=hosts))


def vllm_of(case: Case) -> list[tuple[str, str]]:
    """What is told of vLLM itself, with the hosts."""
    return [(f.id, f.host) for f in findings(case) if f.plane == "vllm" and f.severity != "warning"]


def test_a_replica_that_gave_up_or_gives_no_token_is_told_on_its_own_host() -> None:
    case = replicas()
    facts = case.facts["node-b"]
    known = vllm_of(case)
    failed = replace(facts.unit("vllm.service"), active="failed", sub="failed")
    down = changed(case, "node-b", units={**facts.units, failed.name: failed})
    assert vllm_of(down) == [("vllm.down", "node-b"), *known]
    mute = replace(facts.api, completion=Answer(words="no answer", timed_out=True))
    found = next(f for f in findings(changed(case, "node-b", api=mute)) if f.id == "vllm.hung")
    assert [step.on for step in found.fix] == ["node-b"]


def test_what_ails_the_host_of_one_replica_does_not_explain_the_end_of_another() -> None:
    blocked = Finding("docker.down", "docker", "node-b", "", "")
    for host, why in (("node-a", None), ("node-b", blocked)):
        failed = Finding("vllm.down", "vllm", host, "", "")
        assert dict(ordered([failed, blocked], replicas=True))[failed] == why
        assert dict(ordered([failed, blocked]))[failed] == blocked


def test_of_each_host_that_serves_the_api_and_its_key_are_asked() -> None:
    for case, serves in ((sound(), {"node-a"}), (replicas(), {"node-a", "node-b"})):
        plan = replace(case.plan, api_key=True)
        for host in plan.hosts.values():
            told = script(plan, host, salt="s").splitlines()
            expected = "yes" if host.name in serves else "no"
            assert f"serves={expected}" in told
            secrets = next(line for line in told if line.startswith("secrets="))
            assert (paths.API_KEY in secrets) is (host.name in serves)


ASKED = 'vllm[7]: INFO:     10.77.0.200:57620 - "POST /v1/completions HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (("vllm[7]: serving", ASKED, "systemd[1]: Starting vllm.service"), "it says nothing yet"),
        (("script[9]: waiting: docker", ASKED), "waiting: docker"),
        (("script[9]: waiting: docker", "systemd[1]: vllm.service: Consumed 9 s"),
         "waiting: docker"),
    ],
)  # fmt: skip
def test_what_vllm_said_before_it_was_killed_is_not_what_it_waits_for(
    log: tuple[str, ...], found: str
) -> None:
    facts = sound().facts["node-a"]
    lines = tuple(f"1795971000.{n} node-a {line}" for n, line in enumerate(log))
    unit = replace(facts.unit("vllm.service"), active="activating", sub="start-pre", log=lines)
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    assert next(f for f in findings(case) if f.id == "vllm.waiting").found == found


def test_the_wrong_card_for_gloo() -> None:
    facts = sound().facts["node-b"]
    text = facts.contents[ENV].replace("GLOO_SOCKET_IFNAME=fabric0", "GLOO_SOCKET_IFNAME=eth9")
    case = changed(sound(), "node-b", contents={**facts.contents, ENV: text})
    assert first(case).id == "collective.environment-changed"
    assert first(case).found == "GLOO_SOCKET_IFNAME=eth9"


def test_an_engine_that_hangs_behind_a_healthy_answer() -> None:
    facts = sound().facts["node-a"]
    api = replace(facts.api, completion=Answer(words="no answer", timed_out=True))
    case = changed(sound(), "node-a", api=api)
    assert first(case).id == "vllm.hung"


def test_a_busy_engine_is_no_hung_one() -> None:
    facts = sound().facts["node-a"]
    api = replace(facts.api, completion=Answer(words="no answer", timed_out=True),
                  metrics={"vllm:num_requests_waiting": 9.0})  # fmt: skip
    case = changed(sound(), "node-a", api=api)
    assert first(case).id == "vllm.busy"
    assert first(case).severity == "warning"


@pytest.mark.parametrize(("later", "identity"), [(500.0, "vllm.busy"), (100.0, "vllm.hung")])
def test_an_engine_that_works_for_others_is_not_restarted(later: float, identity: str) -> None:
    count = "vllm:generation_tokens_total"
    api = replace(
        sound().facts["node-a"].api, completion=Answer(words="no answer", timed_out=True),
        metrics={"vllm:num_requests_running": 9.0, count: 100.0}, later={count: later},
    )  # fmt: skip
    assert first(changed(sound(), "node-a", api=api)).id == identity


def test_what_answers_on_the_port_without_a_vllm_is_no_open_api() -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.unit("vllm.service"), active="activating", sub="start-post")
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit},
                   api=replace(facts.api, keyless_status=404))  # fmt: skip
    assert "security.api-open" not in {f.id for f in findings(case)}


def test_a_unit_that_failed_is_told_with_how_it_ended() -> None:
    facts = sound().facts["node-a"]
    s = "node-a systemd[1]: vllm.service: "
    ends = (f"10.0 {s}Starting vllm.service - vLLM...",
            f"11.0 {s}Control process exited, code=exited, status=3/NOTIMPLEMENTED",
            "10.9 node-a vllm[7]: the model on this host is not the plan's")  # fmt: skip
    unit = replace(facts.unit("vllm.service"), active="failed", sub="failed", result="exit-code",
                   exit_status=0, ends=ends)  # fmt: skip
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    [found] = [one for one in findings(case) if one.id == "vllm.down"]
    assert found.found == "it is failed (exit-code, status=3)"
    assert found.evidence == "the model on this host is not the plan's"


def test_an_api_that_asks_for_no_key() -> None:
    api = replace(sound().facts["node-a"].api, keyless_status=200)
    assert first(changed(sound(), "node-a", api=api)).id == "security.api-open"


def loading(*log: str, starts: int = 1) -> Finding:
    facts = sound().facts["node-a"]
    lines = ("systemd[1]: Starting vllm.service - x", *(f"vllm[7]: {line}" for line in log))
    told = tuple(f"1795971000.{n} node-a {line}" for n, line in enumerate(lines))
    unit = replace(facts.unit("vllm.service"), active="activating", sub="start-post", log=told)
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit},
                   recovery={"vllm": Recovery(starts=starts)})  # fmt: skip
    return next(f for f in findings(case) if f.id == "vllm.starting")


def test_a_start_is_told_with_the_last_words_of_its_log() -> None:
    said = "(EngineCore pid=482) INFO 11-30 15:07:13 [core.py:93] Loading weights took 9 s"
    asked = "no completion yet: <urlopen error [Errno 111] Connection refused>"
    assert loading(said, asked).evidence == "Loading weights took 9 s"
    assert loading(asked).evidence == "vllm.service: activating start-post"
    assert loading("waiting for 2 GPUs; Ray shows: 1").evidence == loading(asked).evidence


@pytest.mark.parametrize(("starts", "compiles"), [(1, True), (3, False)])
def test_only_a_first_start_compiles(starts: int, *, compiles: bool) -> None:
    command = loading(starts=starts).fix[0].command
    assert command.startswith("Wait; ")
    assert ("compiled" in command) is compiles


@pytest.mark.parametrize(("restarts", "identity"), [(1, "vllm.starting"), (3, "vllm.down")])
def test_a_second_start_is_still_a_start_and_a_fourth_is_a_loop(
    restarts: int, identity: str
) -> None:
    facts = sound().facts["node-a"]
    unit = replace(
        facts.units["vllm.service"], active="activating", sub="start-post", in_a_row=restarts
    )
    case = changed(sound(), "node-a", units={**facts.units, "vllm.service": unit})
    assert first(case).id == identity
