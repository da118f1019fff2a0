"""`vllm-cluster fingerprint`, with an `ssh` on the path that says what hosts would say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vllm_cluster.commands.fingerprint import command

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "inventories" / "prod.yaml"
SAID = "package\trsync\t3.2.7-1\nfile\t/etc/hosts\t644 root:root abc\n"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: what lies in the file `answer` is what every host answers."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ncat >/dev/null\nexec cat {tmp_path}/answer\n")
    ssh.chmod(0o755)
    (tmp_path / "answer").write_text(SAID)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(command, [str(EXAMPLE), *words])


def kept(folder: Path) -> Path:
    path = folder / "before.json"
    path.write_text(run("--json").stdout)
    return path


def test_equal_hosts_are_told_equal_with_exit_0(hosts: Path) -> None:
    done = run("--compare", str(kept(hosts)))
    assert done.exit_code == 0
    assert done.stdout.count("equal; 1 file, 1 package") == 2


def test_what_differs_is_named_with_exit_1(hosts: Path) -> None:
    before = kept(hosts)
    (hosts / "answer").write_text(SAID.replace("3.2.7-1", "3.2.7-2"))
    done = run("--compare", str(before), "--host", "node-b")
    assert done.exit_code == 1
    assert "package rsync: 3.2.7-1, then 3.2.7-2" in done.stdout
    told = json.loads(run("--compare", str(before), "--json").stdout)
    assert told["hosts"]["node-a"]["differences"] == ["package rsync: 3.2.7-1, then 3.2.7-2"]


@pytest.mark.parametrize("text", ["{", "[]", '{"hosts": {"node-a": {}}}'])
def test_a_file_that_is_no_fingerprint_is_refused_before_anybody_is_asked(
    hosts: Path, text: str
) -> None:
    path = hosts / "before.json"
    path.write_text(text)
    (hosts / "ssh").write_text("#!/bin/sh\ntouch $0.asked\n")
    done = run("--compare", str(path))
    assert done.exit_code == 2
    assert str(path) in done.output
    assert not (hosts / "ssh.asked").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'Connection refused' >&2; exit 255", "node-a: Connection refused"),
        ("echo 'Last login: today'", "node-a: not a line of a fingerprint: 'Last login: today'"),
    ],
)
def test_a_host_that_does_not_answer_as_it_should_is_named_with_exit_2(
    hosts: Path, body: str, words: str
) -> None:
    (hosts / "ssh").write_text(f"#!/bin/sh\ncat >/dev/null\n{body}\n")
    done = run()
    assert done.exit_code == 2
    assert words in done.stderr
