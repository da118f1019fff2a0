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
from tests.unit.doctor.test_bundle import RANKS, examination
from vllm_cluster.cli import group
from vllm_cluster.commands import doctor, status
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.reach import Silence
from vllm_cluster.facts.doctor.model import Api, Docker, HostFacts, Recovery
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


def again(facts: HostFacts, why: str) -> dict[str, Recovery]:
    """What vLLM notes of itself where nobody asked for its last four starts."""
    noted = replace(facts.recovered("vllm"), again=((facts.clock_s - 60, why),) * 4)
    return {**facts.recovery, "vllm": noted}


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
    assert done.output.count("lab: tiny, TP=1 x PP=2 ") == 2
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
    ("ahead_s", "shown"),
    [(-65, " for 1m05s\n"), (1.2, " for 0m00s\n"), (7200, "deactivating (stop-post)\n")],
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


def test_status_says_how_many_warnings_doctor_shows(run: Run) -> None:
    done = run("status", cases=(warned(),))
    last = done.output.splitlines()[-1]
    assert (done.exit_code, last) == (
        0, "sound, 1 warning; `vllm-cluster doctor inventories/prod.yaml` shows it"
    )  # fmt: skip
    facts = warned().facts["node-a"]
    twice = changed(warned(), "node-a", recovery=again(facts, "it died"))
    last = run("status", cases=(twice,)).output.splitlines()[-1]
    assert last == "sound, 2 warnings; `vllm-cluster doctor inventories/prod.yaml` shows them"
    assert json.loads(run("status", "--json", cases=(twice,)).stdout)["warnings"] == 2
    assert run("status", cases=(sound(),)).output.splitlines()[-1] == "sound"


def test_status_says_that_a_run_goes_back_until_the_old_one_answers(run: Run) -> None:
    busy = Busy(Bearer("1", "alice", "laptop-7", "cluster.py"), 1796066000, 150)
    records = {"g1": Record(1, "g1", "good", vllm="0.32.0"),
               "g2": Record(2, "g2", "failed", "no token", since_s=1796066100)}  # fmt: skip
    case = changed(bad(), "node-a", generations=Kept("g1", records=records))
    back = "going back from generation 2 to generation 1 (vLLM 0.32.0, g1); nothing serves now\n"
    assert back not in run("status", cases=(case,)).output
    assert back in run("status", cases=(changed(case, "node-a", run=busy),)).output
    up = changed(sound(), "node-a", generations=Kept("g1", records=records), run=busy)
    assert "serving generation 1" in run("status", cases=(up,)).output


def test_status_cuts_a_long_reason_at_a_word_and_json_has_all_of_it(run: Run) -> None:
    reason = "vLLM did not start on node-a: " + "no memory for the blocks " * 20 + "at all"
    records = {"g4": Record(4, "g4", "good", vllm="0.32.0"),
               "g5": Record(5, "g5", "failed", reason, since_s=1796066000)}  # fmt: skip
    facts = sound().facts["node-a"]
    kept = Kept("g4", records=records)
    case = changed(sound(), "node-a", generations=kept, recovery=again(facts, reason))
    lines = run("status", cases=(case,)).output.splitlines()
    failed = next(each for each in lines if "generation 5 failed" in each)
    often = next(each for each in lines if "started again 4 times in 24 h" in each)
    for line in (failed, often):
        assert 150 < len(line.strip()) <= 201
        assert line.endswith(("no…", "memory…", "for…", "the…", "blocks…"))
    told = json.loads(run("status", "--json", cases=(case,)).stdout)
    assert told["generation"]["setback"].endswith("at all")
    assert told["hosts"]["node-a"]["units"]["vllm.service"]["note"].endswith("at all")


def test_status_shows_the_beginning_of_a_word_that_fills_the_line(run: Run) -> None:
    records = {
        "g4": Record(4, "g4", "good", vllm="0.32.0"),
        "g5": Record(5, "g5", "failed", "x" * 300),
    }
    case = changed(sound(), "node-a", generations=Kept("g4", records=records))
    assert f"generation 5 failed because {'x' * 150}" in run("status", cases=(case,)).output


@pytest.mark.parametrize(
    ("active", "sub", "shown"),
    [("active", "running", True), ("activating", "start-post", True),
     ("deactivating", "stop", True), ("activating", "start-pre", False),
     ("activating", "auto-restart", False), ("failed", "failed", False),
     ("inactive", "dead", False)],
)  # fmt: skip
def test_status_shows_no_rank_where_none_runs(
    run: Run, active: str, sub: str, *, shown: bool
) -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.unit("vllm.service"), active=active, sub=sub)
    units = {**facts.units, unit.name: unit}
    case = changed(sound(), "node-a", units=units, rank_lines=RANKS)
    assert ("rank  pp  tp" in run("status", cases=(case,)).output) is shown
    told = json.loads(run("status", "--json", cases=(case,)).stdout)
    assert [bool(each["found"]) for each in told["ranks"]] == [shown, shown]


def test_status_leaves_open_where_a_rank_runs_that_vllm_has_not_named_yet(run: Run) -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.unit("vllm.service"), active="activating", sub="start-post")
    units = {**facts.units, unit.name: unit}
    silent_yet = changed(sound(), "node-a", units=units)
    assert "rank  pp  tp" not in run("status", cases=(silent_yet,)).output
    half = changed(silent_yet, "node-a", rank_lines=RANKS[:1])
    shown = run("status", cases=(half,)).output
    assert "   0   0   0  node-a        node-a\n   1   1   0  node-b        -\n" in shown


def test_status_reads_each_replicas_own_log(run: Run) -> None:
    case = changed(sound(), "node-a", rank_lines=RANKS[:1])
    unit = case.facts["node-a"].unit("vllm.service")
    case = changed(case, "node-b", units={**case.facts["node-b"].units, unit.name: unit},
                   rank_lines=RANKS[:1])  # fmt: skip
    first, second = case.plan.ranks
    ranks = (first, replace(second, rank=0, pp_rank=0, replica=1))
    case = replace(case, plan=replace(case.plan, replicas=2, pipeline=1, ranks=ranks))
    told = json.loads(run("status", "--json", cases=(case,)).stdout)["ranks"]
    assert [(each["planned"], each["found"]) for each in told] == [
        ("node-a", "node-a"), ("node-b", "node-b")
    ]  # fmt: skip


def test_status_shows_the_api_of_each_replica(run: Run) -> None:
    case = sound()
    vllm = case.plan.hosts["node-a"].containers["vllm"]
    hosts = {name: replace(host, containers={"vllm": vllm}) for name, host in
             case.plan.hosts.items()}  # fmt: skip
    case = replace(case, plan=replace(case.plan, backend="mp", replicas=2, hosts=hosts))
    lines = [line for line in run("status", cases=(case,)).output.splitlines() if "API " in line]
    assert lines == [
        "API http://10.77.0.11:8000/v1 answers", "API http://10.77.0.12:8000/v1 does not answer"
    ]  # fmt: skip


def test_status_counts_restarts_since_a_unit_last_held(run: Run) -> None:
    facts = sound().facts["node-b"]
    unit = replace(facts.unit("ray-worker.service"), restarts=6)
    lines = []
    for in_a_row in (0, 1, 2):
        units = {**facts.units, unit.name: replace(unit, in_a_row=in_a_row)}
        shown = run("status", cases=(changed(sound(), "node-b", units=units),)).output
        lines += [line for line in shown.splitlines() if unit.name in line]
    assert "restart" not in lines[0]
    assert lines[1].endswith("  1 restart since it last held")
    assert lines[2].endswith("  2 restarts since it last held")


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
