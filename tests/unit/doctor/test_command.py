"""The command: what is shown of what was found, as text and as JSON, once or again and again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.unit.doctor.cases import changed, sound
from tests.unit.doctor.here import description, ssh
from tests.unit.doctor.test_bundle import examination
from vllm_cluster.cli import group
from vllm_cluster.commands import doctor, status
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.reach import Silence
from vllm_cluster.facts.doctor.model import Api, Docker, HostFacts
from vllm_cluster.plan.generations import Kept, Record
from vllm_cluster.plan.run_lock import Bearer, Busy

LAB = Path(__file__).parents[3] / "inventories" / "lab.yaml"
Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`vllm-cluster WORDS… FILE` on cases in the place of hosts: a look for each of them."""

    def made(*words: str, cases: tuple[Case, ...]) -> Result:
        looks: Iterator[Examination] = map(examination, cases)

        def examine(file: Path, **_: object) -> Examination:
            assert file == LAB
            try:
                return next(looks)
            except StopIteration:
                raise click.Abort from None

        for module in (doctor, status):
            monkeypatch.setattr(module, "examine", examine)
            monkeypatch.setattr(f"{module.__name__}.time.sleep", lambda _: None)
        return CliRunner().invoke(group, [*words, str(LAB)])

    return made


def bad() -> Case:
    """A wrong name on node-a, a unit that is down on node-b, and so vLLM down on the head."""
    case = changed(sound(), "node-a", names={"node-a": ("127.0.1.1",), "node-b": ("10.77.0.12",)})
    return _worker_down(case)


def _worker_down(case: Case) -> Case:
    for host, name in (("node-b", "ray-worker"), ("node-a", "vllm")):
        facts = case.facts[host]
        unit = replace(facts.units[f"{name}.service"], active="failed", sub="failed")
        docker = replace(facts.docker, containers={}, inside={})
        case = changed(case, host, units={**facts.units, unit.name: unit}, docker=docker)
    return case


def warned() -> Case:
    """A warning and nothing else."""
    return changed(sound(), "node-a", cloud_init=("/etc/cloud/cloud.cfg:manage_etc_hosts: true",))


def silent() -> Case:
    """Nobody answers."""
    case = sound()
    words = {name: Silence(name, "Connection refused", "ssh") for name in case.plan.hosts}
    return replace(case, facts={}, silent=words)


@pytest.mark.parametrize(
    ("case", "code", "last"),
    [
        (sound(), 0, "lab: sound; 2 of 2 hosts looked at in 1.0 s."),
        (warned(), 0, "lab: sound, 1 warning; 2 of 2 hosts looked at in 1.0 s."),
        (bad(), 1, "lab: network plane on node-a; 2 of 2 hosts looked at in 1.0 s."),
        (silent(), 2, "lab: host plane on node-a and 1 more; 0 of 2 hosts looked at in 1.0 s."),
    ],
)
def test_the_exit_code_and_the_last_line_agree(run: Run, case: Case, code: int, last: str) -> None:
    done = run("doctor", cases=(case,))
    assert done.output.splitlines()[-1] == last
    assert done.exit_code == code
    told = json.loads(run("doctor", "--json", cases=(case,)).stdout)
    assert told["exit_code"] == code
    assert told["hosts"].keys() == {"node-a", "node-b"}


def test_a_plane_shows_its_findings_alone_and_the_verdict_of_the_whole(run: Run) -> None:
    done = run("doctor", "--plane", "ray", "--plane", "security", "--json", cases=(bad(),))
    assert {row["plane"] for row in json.loads(done.stdout)["findings"]} == {"ray"}
    done = run("doctor", "--plane", "security", cases=(bad(),))
    assert "FAIL" not in done.output
    assert "network plane on node-a" in done.output
    assert done.exit_code == 1


def test_a_plane_shows_what_follows_from_a_cause_in_another(run: Run) -> None:
    done = run("doctor", "--plane", "vllm", cases=(bad(),))
    assert "FAIL  node-a  vllm  vllm.down" in done.output
    assert "follows from" in done.output
    assert "vllm.down" not in "".join(
        line for line in run("doctor", cases=(bad(),)).output.splitlines() if "FAIL" in line
    )


def test_a_host_shows_what_concerns_it(run: Run) -> None:
    done = run("doctor", "--host", "node-b", "--json", cases=(bad(),))
    assert [row["id"] for row in json.loads(done.stdout)["findings"]] == ["ray.worker-down"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--host", "node-c"), "there are node-a, node-b"), (("--plane", "gpus"), "'gpu'"),
     (("--watch", "0"), "--watch")],
)  # fmt: skip
def test_what_there_is_not_is_bad_input_and_named(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    done = run("doctor", *words, cases=(sound(),))
    assert done.exit_code == 2
    assert said in done.output


def test_a_host_that_there_is_not_is_refused_before_any_is_asked(run: Run) -> None:
    done = run("doctor", "--host", "nope", cases=())
    assert done.exit_code == 2
    assert "no such host: nope; there are node-a, node-b" in done.output


def test_watching_prints_when_something_changes_and_not_before(run: Run) -> None:
    cases = (sound(), sound(), bad(), bad(), sound())
    done = run("doctor", "--watch", "5", cases=cases)
    verdicts = [line for line in done.output.splitlines() if line.startswith("lab: ")]
    assert [": sound" in line for line in verdicts] == [True, False, True]


def test_watching_as_json_prints_one_object_a_line_and_no_time(run: Run) -> None:
    done = run("doctor", "--watch", "5", "--json", cases=(sound(), bad(), bad()))
    lines = [line for line in done.stdout.splitlines() if line]
    assert [json.loads(line)["exit_code"] for line in lines] == [0, 1]


def test_seconds_that_run_in_what_was_found_are_no_change(run: Run) -> None:
    looks = []
    for clock in (100.0, 105.0, 110.0):
        case = changed(sound(), "node-b", clock_offset_s=clock)
        looks.append(case)
    found = [examination(case).findings[0][0] for case in looks]
    assert found[0].found != found[1].found
    done = run("doctor", "--watch", "5", cases=tuple(looks))
    assert done.output.count("host.clock") == 1


@pytest.mark.parametrize("output", ["/nonexistent/there.tar.gz", "/tmp"])
def test_an_archive_that_cannot_be_written_is_bad_input(output: str) -> None:
    done = CliRunner().invoke(group, ["support-bundle", str(LAB), "--output", output])
    assert done.exit_code == 2
    assert output.rpartition("/there")[0] in done.output


def test_status_redraws_and_names_the_cause(run: Run) -> None:
    done = run("status", "--watch", "5", cases=(sound(), bad()))
    assert done.output.count("rank  pp  tp") == 2
    assert "network plane, node-a" in done.output
    once = run("status", "--json", cases=(bad(),))
    assert once.exit_code == 1
    assert json.loads(once.stdout)["first_cause"]["id"] == "network.name"


def bare(case: Case, *names: str) -> Case:
    """Hosts to which no deploy has been."""
    for name in names:
        gone = HostFacts(name)
        case = changed(case, name, files={}, contents={}, secrets={}, units={}, nft="", owners=(),
                       names={}, docker=Docker(installed=False), model=gone.model, ray=gone.ray,
                       api=gone.api, generations=gone.generations)  # fmt: skip
    return case


def test_status_of_hosts_without_a_deploy_calls_them_no_sound_cluster(run: Run) -> None:
    case = bare(sound(), "node-a", "node-b")
    assert run("doctor", cases=(case,)).exit_code == 0, "nothing stands in the way"
    done = run("status", cases=(case,))
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == (
        "nothing is deployed on these hosts yet; "
        "`pyinfra -y inventories/prod.py deploys/cluster.py` deploys"
    )
    assert done.output.count("    nothing is deployed here\n") == 2
    told = json.loads(run("status", "--json", cases=(case,)).stdout)
    assert (told["exit_code"], told["deployed"]) == (1, False)


def test_status_names_the_one_host_without_a_deploy(run: Run) -> None:
    done = run("status", cases=(bare(sound(), "node-b"),))
    assert done.exit_code == 1
    assert done.output.count("nothing is deployed") == 1
    lines = done.output.splitlines()
    where = lines.index("    nothing is deployed here")
    assert lines[where - 1].startswith("node-b ")
    assert "ray-head.service" in done.output
    assert lines[-1] == (
        "host plane, node-b: expected the cluster's files, as on the other hosts, "
        "found none: a new or a wiped machine (host.not-deployed); "
        "`vllm-cluster doctor inventories/prod.yaml` has the fix"
    )


def test_status_of_hosts_that_nobody_saw_says_nothing_of_a_deploy(run: Run) -> None:
    done = run("status", cases=(silent(),))
    assert done.exit_code == 2
    assert "nothing is deployed" not in done.output


def test_status_calls_no_generation_serving_while_vllm_is_down(run: Run) -> None:
    record = Record(4, "g4", "good", vllm="0.32.0")
    case = changed(bad(), "node-a", generations=Kept("g4", records={"g4": record}))
    shown = run("status", cases=(case,)).output
    assert "generation 4 (vLLM 0.32.0, g4) is in place; nothing serves now" in shown
    up = changed(sound(), "node-a", generations=Kept("g4", records={"g4": record}))
    assert "serving generation 4" in run("status", cases=(up,)).output


def test_status_calls_no_generation_serving_while_a_host_is_silent_and_no_token_comes(
    run: Run,
) -> None:
    record = Record(4, "g4", "good", vllm="0.32.0")
    case = changed(sound(), "node-a", generations=Kept("g4", records={"g4": record}))
    alone = replace(case, facts={"node-a": case.facts["node-a"]},
                    silent={"node-b": Silence("node-b", "timed out", "ssh node-b")})  # fmt: skip
    dumb = changed(alone, "node-a", api=Api())
    said = "generation 4 (vLLM 0.32.0, g4) is in place; the API does not answer\n"
    assert said in run("status", cases=(dumb,)).output
    assert "serving generation 4" in run("status", cases=(alone,)).output
    busy = changed(case, "node-a", api=Api())
    assert "serving generation 4" in run("status", cases=(busy,)).output


def test_status_tells_what_failed_earlier_on_a_line_of_its_own(run: Run) -> None:
    records = {"g4": Record(4, "g4", "good", vllm="0.32.0"),
               "g5": Record(5, "g5", "failed", "no token", since_s=1796066000)}  # fmt: skip
    case = changed(bad(), "node-a", generations=Kept("g4", records=records))
    assert (
        "is in place; nothing serves now\n"
        "2026-11-30 19:13 UTC: generation 5 failed because no token\n"
    ) in run("status", cases=(case,)).output


@pytest.mark.parametrize(
    ("ahead_s", "shown"), [(-65, "for 1m05s\n"), (1.2, "for 0m00s\n"), (7200, "for -\n")]
)
def test_status_shows_no_time_that_is_negative(run: Run, ahead_s: float, shown: str) -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.unit("vllm.service"), active="deactivating", sub="stop-post",
                   changed_s=facts.clock_s + ahead_s)  # fmt: skip
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    done = run("status", cases=(case,))
    lines = done.output.splitlines()
    (line,) = [each for each in lines if each.startswith("    vllm.service ")]
    assert f"{line}\n".endswith(shown)


def test_status_names_a_run_in_the_place_of_a_deploy_on_hosts_without_one(run: Run) -> None:
    busy = Busy(Bearer("1", "alice", "laptop-7", "cluster.py"), 1795971900, 66)
    case = changed(bare(sound(), "node-a", "node-b"), "node-a", run=busy)
    lines = run("status", cases=(case,)).output.splitlines()
    assert lines[-2] == "nothing is deployed on these hosts yet; a run is under way"
    assert "node-a: alice on laptop-7 runs cluster.py since " in lines[-1]
    assert lines[-1].endswith("(host.run-under-way); wait")


def test_status_sends_nobody_to_doctor_for_a_fix_that_is_to_wait(run: Run) -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.unit("vllm.service"), active="activating", sub="start-post")
    case = changed(sound(), "node-a", api=Api(), units={**facts.units, unit.name: unit})
    last = run("status", cases=(case,)).output.splitlines()[-1]
    assert last.startswith("vllm plane, node-a: expected ")
    assert last.endswith("(vllm.starting); wait")


@pytest.mark.parametrize(("words", "keyless"), [(("status",), "no"), (("doctor",), "yes")])
def test_status_leaves_no_refused_request_in_vllms_log(
    words: tuple[str, ...], keyless: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "sent"
    bin_directory = ssh(tmp_path, f"cat >>{log}; exit 255")
    monkeypatch.setenv("PATH", f"{bin_directory}:{os.environ['PATH']}")
    CliRunner().invoke(group, [*words, str(description(tmp_path))])
    assert f"\nkeyless={keyless}\n" in log.read_text()
