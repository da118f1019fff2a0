"""The archive for those who help from afar: everything but secrets; and the screen of `status`."""

from __future__ import annotations

import json
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.doctor.cases import changed, recorded, sound
from vllm_cluster.control.context import Context
from vllm_cluster.doctor import bundle, logs, report, state
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.finding import Finding
from vllm_cluster.doctor.reach import Look, Silence
from vllm_cluster.doctor.redact import redacted, redacted_json

LAB = Path(__file__).parents[3] / "inventories" / "lab.yaml"
TOKEN = "c0ffee" * 10
RANKS = (
    "(EngineCore pid=9) rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, "
    "TP rank 0",
    "(RayWorkerProc pid=77, ip=10.77.0.12) rank 1 in world size 2 is assigned as DP rank 0, "
    "PP rank 1, PCP rank 0, TP rank 0",
)


def examination(case: Case, raw: dict[str, str] | None = None) -> Examination:
    """What `examine` would give."""
    raw = raw or {name: recorded(name) for name in case.facts}
    look = Look(dict(case.facts), dict(case.silent), raw, "salt", 1.0)
    return Examination(case, look, tuple(ordered(findings(case))))


def written(tmp_path: Path, found: Examination, *, api_key: str = "sesame-" * 3) -> dict[str, str]:
    """The files of a bundle."""
    cluster = SimpleNamespace(file=LAB)
    secrets = {"ray_token": TOKEN, "api_key": api_key}
    known = cast(Context, SimpleNamespace(plan=found.case.plan, cluster=cluster, secrets=secrets))
    path = tmp_path / "bundle.tar.gz"
    bundle.write(known, found, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        found_files = {}
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            found_files[member.name.partition("/")[2]] = content.read().decode()
    return found_files


def test_the_archive_holds_all_and_not_one_secret(tmp_path: Path) -> None:
    case = sound()
    log = (
        f"1.5 node-a docker[1]: RAY_AUTH_TOKEN={TOKEN} and then\n"
        "1.6 node-a docker[1]: Authorization: Bearer abcdefgh12345678\n"
        "1.7 node-a docker[1]: HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrSt\n"
        "1.8 node-a docker[1]: http://user:passw0rd1@proxy:3128 api_key: sesame-sesame-sesame-\n"
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    own = f"@@vllm-cluster ray-file 9.5 worker-a-b-7.err\n RAY_AUTH_TOKEN={TOKEN} of a worker\n"
    raw = {"node-a": recorded("node-a") + log + own, "node-b": recorded("node-b")}
    files = written(tmp_path, examination(case, raw))
    assert set(files) >= {
        "doctor.json", "doctor.txt", "status.json", "status.txt", "logs.txt", "plan.json",
        "description.yaml", "hosts/node-a.txt", "hosts/node-b.txt",
    }  # fmt: skip
    everything = "\n".join(files.values())
    digests = [d for facts in case.facts.values() for d in facts.secrets.values()]
    for secret in (TOKEN, "abcdefgh12345678", "hf_AbCdEfGhIjKlMnOpQrSt", "passw0rd1",
                   "sesame-sesame", "b3BlbnNzaC1rZXk", *digests):  # fmt: skip
        assert secret not in everything
    assert "and then" in files["hosts/node-a.txt"]
    assert "of a worker" in files["hosts/node-a.txt"]


@pytest.mark.parametrize("key", ['q"uo"te', "back\\slash", "it's", "k3y", 'a\\"b'])
def test_a_known_key_of_any_length_and_form_is_in_no_file_of_the_archive(
    tmp_path: Path, key: str
) -> None:
    case = sound()
    vllm = case.facts["node-a"].units["vllm.service"]
    log = (f"9.0 node-a docker[1]: RuntimeError: got {key} CUDA out of memory",)
    units = {**case.facts["node-a"].units, vllm.name: replace(vllm, active="failed", log=log)}
    docker = replace(case.facts["node-a"].docker, containers={}, inside={})
    case = changed(case, "node-a", units=units, docker=docker)
    once = json.dumps(f"got {key} of")
    raw = {"node-a": f"got {key} of\n{once}\n{json.dumps(once)}\n"}
    files = written(tmp_path, examination(case, raw), api_key=key)
    assert "got [removed] CUDA" in files["doctor.json"]
    assert files["hosts/node-a.txt"].splitlines() == [
        "got [removed] of", '"got [removed] of"', r'"\"got [removed] of\""'
    ]  # fmt: skip
    for name in ("doctor.json", "status.json", "plan.json"):
        json.loads(files[name])
    assert [name for name, text in files.items() if f"got {key}" in text] == []


def test_a_host_without_a_key_leaves_every_word(tmp_path: Path) -> None:
    files = written(tmp_path, examination(sound(), {"node-a": "all of it"}), api_key="")
    assert files["hosts/node-a.txt"] == "all of it"


@pytest.mark.parametrize(
    "line",
    ["password=P4ss", "password=Sup3r;P4ss", "pass=P4ss", "user=a%P4ss", "password=/P4ss",
     "api_key=['first', 'P4ss']", "api_key=['first', \"P4ss\"", "--password P4ss",
     "DB_PASS='with P4ss in it'", json.dumps({"password": 'a"P4ss', "api_key": ["a", "P4ss"]}),
     json.dumps(json.dumps({"password": "a P4ss", "api_keys": 1, "api_key": ["a", "P4ss"]})),
     json.dumps({"api_key": ["a", "P4ss"]}, indent=1)],
)  # fmt: skip
def test_passwords_and_lists_of_keys_are_in_no_file_of_the_archive(
    tmp_path: Path, line: str
) -> None:
    case = sound()
    log = (f"9.0 node-a docker[1]: RuntimeError: {line}",)
    vllm = replace(case.facts["node-a"].units["vllm.service"], active="failed", log=log)
    docker = replace(case.facts["node-a"].docker, containers={}, inside={})
    units = {**case.facts["node-a"].units, vllm.name: vllm}
    case = changed(case, "node-a", units=units, docker=docker)
    files = written(tmp_path, examination(case, {"node-a": f"{line}\nand then"}))
    assert [name for name, text in files.items() if "P4ss" in text] == []
    assert files["hosts/node-a.txt"].endswith("\nand then")
    json.loads(files["doctor.json"])


def test_in_json_a_name_an_option_and_a_list_say_what_a_value_is() -> None:
    value = {
        "argv": ["serve", "--api-key", "VERYSECRET1", "--hf-token", "--port", "8000"],
        "api_key": ["a", "b"], "password": "P4", "token": "/run/secrets/x", "key": True,
        "words": ["--password=a b", "user=a%P4ss", "max_tokens"],
    }  # fmt: skip
    assert json.loads(redacted_json(json.dumps(value), ["serve"])) == {
        "argv": ["[removed]", "--api-key", "[removed]", "--hf-token", "--port", "8000"],
        "api_key": ["[removed]", "[removed]"], "password": "[removed]",
        "token": "/run/secrets/x", "key": True,
        "words": ["--password=[removed] b", "user=a%[removed]", "max_tokens"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", [{"password": "a b", "api_key": ["a", 'b"c'], "more": [1, None]}, {"password": None}]
)
def test_json_stays_json(value: dict[str, Any]) -> None:
    assert json.loads(redacted_json(json.dumps(value), [])) == json.loads(
        redacted(json.dumps(value), [])
    )
    told = json.loads(redacted(json.dumps(value), []))
    assert told.keys() == value.keys()
    assert told.get("more") == value.get("more")
    assert json.loads(json.loads(redacted(json.dumps(json.dumps(value)), []))) == told


def test_a_host_that_did_not_answer_is_in_the_archive_with_its_words(tmp_path: Path) -> None:
    case = sound()
    case = replace(
        case, facts={"node-a": case.facts["node-a"]},
        silent={"node-b": Silence("node-b", "No route to host", "ssh node-b")},
    )  # fmt: skip
    files = written(tmp_path, examination(case))
    assert files["hosts/node-b.silent.txt"] == "No route to host"
    assert files["logs.txt"].splitlines()[-1] == "node-b not seen: No route to host"


def test_an_archive_that_was_there_and_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "bundle.tar.gz").touch(mode=0o644)
    written(tmp_path, examination(sound()))


def test_where_nobody_answers_no_log_is_said_to_name_nothing() -> None:
    case = sound()
    silent = {name: Silence(name, "no", "ssh") for name in case.plan.hosts}
    text = logs.text(examination(replace(case, facts={}, silent=silent)))
    assert text.startswith("No host answered")


@pytest.mark.parametrize(
    "text",
    ["vllm serve m --api-key VERYSECRET1", '"--api-key", "VERYSECRET1"',
     "{'api_key': ['VERYSECRET1']}",
     "AWS_SECRET_ACCESS_KEY=VERYSECRET1", "--hf-token VERYSECRET1",
     "ghp_VERYSECRET1VERYSECRET1", "sk-VERYSECRET1VERYSECRET1", "AKIAVERYSECRET1ABCDE"],
)  # fmt: skip
def test_secrets_in_the_ways_that_programs_write_them_are_taken_out(text: str) -> None:
    assert "VERYSECRET1" not in redacted(text, [])


@pytest.mark.parametrize(
    "text",
    ["--token-file=/etc/vllm-cluster/secrets/ray-token", "max-num-batched-tokens: 2048",
     "secret: /run/secrets/x", "prompt_tokens 12345678", "--token --max-model-len=4096",
     "password: null", "{'password': None, 'x': 1}", "tokens=12", "max_tokens=100000",
     "token_ids: [1000000, 2]", "generated_tokens: 123456789", "(using password: YES)",
     "Password: \nnext", "bypass=12345678", "User=%i", "token: [removed]",
     "security.secret-missing", "task-0123456789abcdef0123456789"],
)  # fmt: skip
def test_what_only_sounds_like_a_secret_stays(text: str) -> None:
    assert redacted(text, []) == text


def test_the_screen_shows_ranks_where_they_run_and_where_they_should() -> None:
    case = changed(sound(), "node-a", rank_lines=RANKS)
    told = state.to_json(examination(case))
    assert [(r["rank"], r["planned"], r["found"]) for r in told["ranks"]] == [
        (0, "node-a", "node-a"), (1, "node-b", "node-b")
    ]  # fmt: skip
    assert told["api"]["answers"] is True
    assert told["hosts"]["node-b"]["ray_gpus"] == 1
    moved = changed(sound(), "node-a", rank_lines=(RANKS[0], RANKS[1].replace(".12", ".11")))
    assert "<- not where the plan has it" in state.text(examination(moved))


def test_the_screen_of_a_cluster_with_a_dead_host_still_shows_the_rest() -> None:
    case = sound()
    case = replace(
        case, facts={"node-a": case.facts["node-a"]},
        silent={"node-b": Silence("node-b", "Connection timed out", "ssh node-b")},
    )  # fmt: skip
    text = state.text(examination(case))
    assert "node-b       not seen: Connection timed out" in text
    assert "ray-head.service" in text
    assert "host.unreachable" in text


def test_the_exit_codes() -> None:
    case = sound()
    assert examination(case).exit_code == 0
    blind = replace(case, facts={}, silent={n: Silence(n, "no", "ssh") for n in case.plan.hosts})
    assert examination(blind).exit_code == 2
    units = {**case.facts["node-a"].units}
    units["vllm.service"] = replace(units["vllm.service"], active="failed", sub="failed")
    docker = replace(case.facts["node-a"].docker, containers={}, inside={})
    assert examination(changed(case, "node-a", units=units, docker=docker)).exit_code == 1


def test_json_names_the_cause_of_what_follows() -> None:
    case = sound()
    units = {**case.facts["node-a"].units}
    units["ray-head.service"] = replace(units["ray-head.service"], active="failed")
    units["vllm.service"] = replace(units["vllm.service"], active="inactive")
    docker = replace(case.facts["node-a"].docker, containers={}, inside={})
    found = examination(changed(case, "node-a", units=units, docker=docker))
    told = json.loads(report.dumps(found, list(found.findings)))
    by_id: dict[str, Any] = {row["id"]: row for row in told["findings"]}
    assert by_id["ray.head-down"]["caused_by"] is None
    assert by_id["vllm.down"]["caused_by"]["id"] == "ray.head-down"
    text = report.text(found, list(found.findings), everything=False)
    assert text.startswith("FAIL  node-a  ray  ray.head-down")
    assert "explains  vllm.down on node-a" in text


def test_what_follows_twice_under_one_name_is_told_once() -> None:
    cause = Finding("host.disk", "host", "node-a", "room", "none")
    first, second = (Finding("security.secret-missing", "security", "node-a", f, "none")
                     for f in ("the token", "the key"))  # fmt: skip
    rows: list[tuple[Finding, Finding | None]] = [(cause, None), (first, cause), (second, cause)]
    text = report.text(examination(sound()), rows, everything=False)
    assert "explains  security.secret-missing on node-a\n" in text


def test_the_first_cause_of_all_hosts_is_the_deepest_one_and_of_this_life() -> None:
    case = sound()
    worker = case.facts["node-b"].units["ray-worker.service"]
    log = (
        "10.0 node-b docker[1]: OSError: No space left on device",
        "20.0 node-b systemd[1]: Starting ray-worker.service - Ray worker of lab...",
        "21.0 node-b docker[1]: RuntimeError: Version mismatch: Ray 2.60.0 and 2.59.0",
    )
    units = {**case.facts["node-b"].units, worker.name: replace(worker, log=log)}
    found = examination(changed(case, "node-b", units=units))
    text = logs.text(found)
    assert text.startswith("first cause: Ray or Python differ between the hosts (ray plane)")
    assert "node-b, ray-worker.service" in text
