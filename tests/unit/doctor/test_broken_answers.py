"""Answers that are late, cut or broken: told as such, and never taken for what they leave out."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.doctor.cases import FIXTURES, changed, first, ids, recorded, sound
from vllm_cluster.doctor import reach
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import findings
from vllm_cluster.facts.doctor import parse
from vllm_cluster.facts.doctor.model import Disk, Model
from vllm_cluster.facts.doctor.read_gpu import smi
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections

GATHER = Path(reach.__file__).parents[1] / "facts" / "doctor" / "gather"


def answered(text: str, err: str = "") -> Case:
    """The sound cluster whose node-b said `text`."""
    found = reach._read("node-b", reach.Reply(0, text, err, 1.0))
    assert found is not None
    return replace(sound(), facts={**sound().facts, "node-b": found})


def test_a_host_whose_answer_broke_off_is_not_judged_by_what_is_missing() -> None:
    text = recorded("node-b")
    case = answered(text[: text.index(f"{MARK} docker-info")], "Connection reset by peer")
    assert ids(case) == ["host.incomplete"]
    assert first(case).severity == "blind"
    assert first(case).evidence == "Connection reset by peer"


@pytest.mark.parametrize("cut", range(0, len(recorded("node-b")), 401))
def test_wherever_an_answer_breaks_off_doctor_says_so(cut: int) -> None:
    text = recorded("node-b")[:cut]
    if reach._read("node-b", reach.Reply(255, text, "", 1.0)) is None:
        return  # nothing was said: the host counts as silent
    assert [f.id for f in findings(answered(text)) if f.host == "node-b"] == ["host.incomplete"]


def test_half_a_line_before_a_time_out_is_no_file() -> None:
    said = f"{MARK} model\nentry f 12 a.json\nentry f 1{MARK}= 124\n{MARK} end\n"
    assert Sections(said).one("model").lines == ("entry f 12 a.json",)
    assert Sections(said).one("model").timed_out


def test_a_log_that_quotes_the_mark_is_a_log() -> None:
    said = f"{MARK} kernel\nfoo {MARK}= x\n{MARK}= y\n{MARK} end\n"
    assert Sections(said).one("kernel").lines == (f"foo {MARK}= x", f"{MARK}= y")


def test_without_an_answer_of_systemd_no_unit_counts_as_gone() -> None:
    text = recorded("node-b")
    begin = text.index(f"{MARK} units")
    case = answered(text[:begin] + text[text.index(f"\n{MARK} ", begin) + 1 :])
    assert ids(case) == ["host.incomplete"]
    assert first(case).found == "systemd gave no answer"


@pytest.mark.parametrize("lost", ["containers", "docker-image"])
def test_where_docker_does_not_say_what_runs_nobodys_process_is_a_stranger(lost: str) -> None:
    """The ports' owners are Ray's own, and would be ended by the fix."""
    text = recorded("node-b")
    begin = text.index(f"{MARK} {lost}")
    end = text.index(f"{MARK} model", begin)
    case = answered(
        text[:begin] + (f"{MARK} {lost}\n" if lost == "containers" else "") + text[end:]
    )
    assert case.facts["node-b"].owners
    assert not any(owner.ours for owner in case.facts["node-b"].owners)
    found = [finding.id for finding in findings(case) if finding.host == "node-b"]
    assert "docker.down" in found
    assert "host.port-taken" not in found


def test_a_slow_local_disk_is_no_hung_mount() -> None:
    """Its fix would unmount the root."""
    weights = sound().plan.weights_directory
    facts = sound().facts["node-b"]
    disks = {**facts.disks, weights: Disk(weights, hung=True)}
    case = changed(sound(), "node-b", model=Model(hung=True), disks=disks)
    assert ids(case) == ["model.unread"]
    assert first(case).severity == "warning"


def test_touched_weights_that_take_minutes_to_read_are_a_warning() -> None:
    model = replace(sound().facts["node-b"].model, unhashed=True)
    case = changed(sound(), "node-b", model=model)
    assert ids(case) == ["model.unread"]
    assert "weights verify" in first(case).fix[0].command


def test_a_warning_behind_the_xml_of_nvidia_smi_is_no_failure() -> None:
    text = next((FIXTURES / "nvidia-smi").glob("*.xml")).read_text()
    whole = smi(text)
    assert whole.cards
    assert smi(f"{text}\nWARNING: infoROM is corrupted at gpu 0000:3B:00.0\n") == whole


def shell(body: str, bin_directory: Path, **values: str) -> list[str]:
    """Lines that a function of the script prints, with `bin_directory` before PATH."""
    program = "\n".join(part.read_text() for part in sorted(GATHER.iterdir()))
    given = "".join(f"{name}={value}\n" for name, value in values.items())
    done = subprocess.run(
        ["bash"], input=f"mark='{MARK}'\nPATH={bin_directory}:$PATH\n{given}{program}\n{body}\n",
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def program(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


def test_one_name_that_hangs_leaves_the_others_known(tmp_path: Path) -> None:
    """The name server is gone, and node-c is in no file."""
    program(tmp_path, "getent", """shift
for name; do [ "$name" = node-c ] && exec sleep 60; done
for name; do echo "10.0.0.1        STREAM $name"; done""")  # fmt: skip
    values = {"self": "'node-a 10.0.0.1'", "peers": "('node-b 10.0.0.2 1' 'node-c 10.0.0.3 1')"}
    values["values"] = "$(declare -p self peers mark)"
    lines = shell("within 4 names", tmp_path, **values)
    assert lines[0] == f"{MARK} names"
    assert sorted(line.split()[0] for line in lines if line.startswith("node")) == [
        "node-a", "node-b",
    ]  # fmt: skip


def test_names_are_told_whether_all_some_or_none_of_them_lead_anywhere(tmp_path: Path) -> None:
    values = {"self": "'node-a 10.0.0.1'", "peers": "('node-b 10.0.0.2 1' 'b-alias 10.0.0.2 1')"}
    getent = """shift
for name; do case " $known " in *" $name "*)
  echo "10.0.0.1        STREAM ${name/b-alias/node-b}"; echo "10.0.0.1        DGRAM"
esac; done"""
    program(tmp_path, "getent", getent)
    for known in ("", "node-a", "node-a node-b", "node-a node-b b-alias"):
        lines = shell("export known; names", tmp_path, known=f"'{known}'", **values)[1:]
        found = {line.split()[0]: line.split()[1:] for line in lines}
        assert set(found) == {"node-a", "node-b", "b-alias"}, known
        assert {name for name, addresses in found.items() if addresses} == set(known.split())


def test_without_our_address_no_frame_is_called_too_large(tmp_path: Path) -> None:
    (line,) = shell("address=192.0.2.77; own_mtu; echo $mtu", tmp_path)
    assert line == "1500"


def test_the_disk_of_dockers_own_data_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"log-driver": "local",\n "data-root" : "/proc"}')
    lines = shell("hung=(); disks", tmp_path, daemon_json=str(file), state="/", ray_directory="/")
    assert f"{MARK} disk /proc" in lines


def test_a_proxys_password_stays_on_its_host(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"proxies": {"https-proxy": "http://ops:s3cr@t@proxy:3128", "a": "b"}}\n')
    text = "\n".join(shell(f"show_file {file}", tmp_path))
    assert "s3cr" not in text
    assert "proxy:3128" in text


def test_dialled_ports_are_told_by_the_peers_name(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["python3", "-c", "import socket,sys;s=socket.create_server(('127.0.0.2',0));"
         "print(s.getsockname()[1],flush=True);sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        port = int(server.stdout.readline())
        values = {"address": "127.0.0.1", "peers": f"('node-b 127.0.0.2 {port} 1')"}
        values["values"] = "$(declare -p peers)"
        lines = shell("all_peers", tmp_path, **values)
        server.communicate("")
    peer = parse("node-a", "\n".join([f"{MARK} clock 1", *lines, ""])).peers["node-b"]
    assert peer.ports == {port: "open", 1: "Connection refused"}


@pytest.mark.parametrize(("keyless", "asked"), [("yes", 1), ("no", 0)])
def test_the_api_is_asked_without_its_key_by_those_alone_who_want_to_know(
    tmp_path: Path, keyless: str, asked: int
) -> None:
    values = {"completion_requests": "('/v1/completions {}')", "api_port": "1", "keyless": keyless}
    values |= {"completion_limit": "1", "api_key_file": "/key"}
    stub = 'within() { shift; "$@"; }; ask() { echo "HTTP/1.0 200 $4 ${6:-keyless}"; }'
    lines = shell(f"{stub}; api_completion", tmp_path, **values)
    assert "HTTP/1.0 200 /v1/completions /key" in lines
    assert lines.count("HTTP/1.0 200 /v1/models keyless") == asked
