"""A description that is not deployed is no fault of the hosts, and no unit that was changed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from tests.unit.doctor.test_bundle import examination
from tests.unit.doctor.test_under_way import BUSY, run_on
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import HERE, Finding
from vllm_cluster.facts.doctor.model import Answer
from vllm_cluster.facts.doctor.read_host import kept
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan import paths
from vllm_cluster.plan.generations import Kept, Record

OLD, NEW = "0" * 12, "1" * 12
VLLM_UNIT = f"{paths.UNITS}/vllm.service"


def in_place(case: Case, *records: Record, pending: str | None = None) -> Case:
    """`case` whose hosts have a generation in place, and all of its files as it has them."""
    plan = case.plan
    now = Record(2, OLD, "good", image=plan.image, model=plan.model_path, vllm="0.26.0",
                 units={name: host.units for name, host in plan.hosts.items()})  # fmt: skip
    known = {each.id: each for each in (now, *records)}
    for name, facts in case.facts.items():
        files = dict.fromkeys(facts.contents, frozenset({OLD}))
        case = changed(case, name, generations=Kept(OLD, pending, known), kept=files)
    return replace(case, generation=NEW)


def described(case: Case, **changes: object) -> Case:
    """`case` with a description that names another length of the context, and what else is said."""
    head = case.plan.hosts["node-a"]
    vllm = head.containers["vllm"]
    command = (*vllm.command, "--max-model-len=77")
    head = replace(head, containers={**head.containers, "vllm": replace(vllm, command=command)})
    plan = replace(case.plan, hosts={**case.plan.hosts, "node-a": head}, **changes)  # type: ignore[arg-type]
    return replace(case, plan=plan)


def loading(case: Case) -> Case:
    head = case.facts["node-a"]
    unit = replace(head.unit("vllm.service"), active="activating", sub="start-post")
    return changed(case, "node-a", units={**head.units, unit.name: unit})


def told(case: Case) -> Finding:
    return next(f for f in findings(case) if f.id == "host.other-generation")


def restarts(case: Case) -> list[str]:
    steps = [step.command for finding in findings(case) for step in finding.fix]
    return [command for command in steps if "restart" in command]


def test_a_description_that_is_not_deployed_yet_is_one_warning() -> None:
    case = described(in_place(sound()))
    found = told(case)
    assert ids(case) == ["host.other-generation"]
    assert (found.severity, found.host, found.about) == ("warning", "node-a", ())
    assert found.found == f"generation 2 (vLLM 0.26.0, {OLD}) is in place; " \
        "the description is another, not deployed yet"  # fmt: skip
    assert [(step.on, step.command) for step in found.fix] == [(HERE, case.deploy)]
    assert found.evidence == "vllm.service has nothing more; --max-model-len=77 is described"
    assert examination(case).exit_code == 0


@pytest.mark.parametrize(("status", "words"), [("failed", "failed"), ("left", "was left")])
def test_one_that_failed_or_was_left_is_corrected_or_tried_again(status: str, words: str) -> None:
    record = Record(3, NEW, status, reason="vLLM did not take its arguments", vllm="0.26.0")
    found = told(described(in_place(sound(), record)))
    assert found.found.endswith(f"the description is generation 3, which {words} because "
                                "vLLM did not take its arguments")  # fmt: skip
    (step,) = found.fix
    assert step.on == "by hand"
    assert step.command.startswith("Correct inventories/prod.yaml and deploy it")
    assert step.command.endswith("deploys/cluster.py --data retry=yes")


def test_one_that_was_interrupted_is_deployed_again() -> None:
    record = Record(3, NEW, "interrupted", reason="the run ended")
    case = described(in_place(sound(), record))
    assert told(case).found.endswith("was interrupted because the run ended")
    assert told(case).fix == case.run_deploy()


def test_while_the_hosts_go_back_by_themselves_nothing_is_restarted() -> None:
    case = described(loading(in_place(sound(), pending=NEW)))
    assert first(case).id == "vllm.starting"
    assert [f.id for f in findings(case)].count("vllm.unit-changed") == 0
    assert told(case).fix[0].command.startswith("Wait;")
    assert restarts(case) == []


def test_a_unit_that_is_not_as_its_generation_has_it_was_changed() -> None:
    case = described(in_place(sound()))
    other = {**case.facts["node-a"].kept, VLLM_UNIT: frozenset({NEW})}
    case = changed(case, "node-a", kept=other)
    assert ids(case) == ["vllm.unit-changed"]
    assert first(case).fix[0].command == case.deploy


def test_a_start_from_a_changed_unit_is_left_to_the_deploy() -> None:
    case = described(sound())
    head = case.facts["node-a"]
    file = replace(head.files[VLLM_UNIT], changed_s=1.0)
    case = changed(case, "node-a", files={**head.files, VLLM_UNIT: file})
    assert restarts(case) == ["systemctl restart --no-block vllm.service"]
    assert restarts(loading(case)) == []


def test_an_image_or_a_model_that_is_not_there_yet_comes_with_the_deploy() -> None:
    case = sound()
    for name, facts in case.facts.items():
        docker = replace(facts.docker, image_id="", image_error="No such image")
        case = changed(case, name, docker=docker, model=replace(facts.model, present=False))
    assert {"docker.image-missing", "model.missing"} <= set(ids(case))
    case = in_place(case)
    weights = replace(case.plan.weights, path="/models/next")
    case = replace(case, plan=replace(case.plan, image="vllm:next", weights=weights))
    assert [one for one in ids(case) if one.startswith(("docker", "model"))] == []
    assert "vllm:next is described" in told(case).evidence


def test_a_model_by_another_name_is_not_asked_for() -> None:
    head = sound().facts["node-a"]
    api = replace(head.api, completion=Answer(404, "no such model"))
    case = changed(sound(), "node-a", api=api)
    assert first(case).id == "vllm.refuses"
    case = in_place(case)
    assert first(described(case)).id == "vllm.refuses"
    assert ids(described(case, model_name="next")) == ["host.other-generation"]


def test_a_role_that_moves_with_the_next_deploy_leaves_what_serves_alone() -> None:
    case = in_place(sound())
    moved = replace(case.plan.hosts["node-b"], units=("ray-head",), containers={})
    case = replace(case, plan=replace(case.plan, hosts={**case.plan.hosts, "node-b": moved}))
    head = {**case.facts["node-b"].units}
    assert "ray-head.service" not in head
    assert not {"docker.leftover", "ray.unit-missing"} & set(ids(case))


def test_while_a_run_waits_for_the_old_one_it_is_not_in_place_but_gone_back_to() -> None:
    record = Record(3, NEW, "failed", reason="no token", since_s=BUSY.since_s + 60)
    case = described(in_place(loading(sound()), record))
    assert told(case).found.startswith(f"generation 2 (vLLM 0.26.0, {OLD}) is in place; ")
    found = told(run_on(case)).found
    assert found == f"the run goes back from generation 3 to generation 2 (vLLM 0.26.0, {OLD}); " \
        "the description is generation 3, which failed because no token"  # fmt: skip
    earlier = replace(record, since_s=BUSY.since_s - 60)
    for other in (in_place(sound(), record), in_place(loading(sound()), earlier)):
        assert "is in place" in told(run_on(described(other))).found


def test_during_a_run_it_is_the_runs() -> None:
    case = run_on(described(in_place(sound())))
    assert ids(case) == ["host.run-under-way", "host.other-generation"]


def test_a_file_is_known_by_the_generation_that_has_it(tmp_path: Path) -> None:
    ours, other = tmp_path / "vllm.service", tmp_path / "cluster.env"
    ours.write_text("as deployed\n")
    other.write_text("edited\n")
    for identity, text in ((OLD, "as deployed\n"), (NEW, "next\n")):
        folder = tmp_path / "generations" / identity / "files"
        for path in (ours, other):
            copy = folder / str(path).lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
    parts = resources("vllm_cluster.facts.doctor") / "gather"
    shell = "".join((parts / name).read_text() for name in ("00-frame.sh", "40-files.sh"))
    shell += f"\nmark={MARK}; generations={tmp_path}/generations; files=({ours} {other} /none)\n"
    done = subprocess.run(["bash", "-c", f"{shell} kept_files; begin end"], capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert kept(Sections(done.stdout)) == {str(ours): frozenset({OLD})}
