"""Commands that only look, on a machine that did not deploy: no secret is made or missed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.doctor.cases import changed, ids, sound
from tests.unit.doctor.here import description, ssh
from vllm_cluster.cli import group
from vllm_cluster.control.context import context
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.plan import paths


def elsewhere() -> Case:
    """A sound cluster that another machine deployed."""
    return replace(sound(), secrets={}, description="inventories/lab.yaml")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A description; no host answers."""
    monkeypatch.setenv("PATH", f"{ssh(tmp_path, 'exit 255')}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return description(tmp_path)


@pytest.mark.parametrize(
    "words", [("doctor",), ("doctor", "logs"), ("status",), ("support-bundle",)]
)
def test_looking_makes_no_secret(file: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(group, [*words, str(file)])
    assert done.exit_code == 2
    assert not (file.parent / ".secrets").exists()
    assert ("nothing by its value" in done.stderr) == (words[0] == "support-bundle")


def test_a_look_before_a_deploy_in_one_process_hides_nothing_from_it(file: Path) -> None:
    assert context(file, make_secrets=False).secrets == {}
    made = context(file).secrets
    assert made.keys() == {"ray_token", "api_key"}
    assert context(file, make_secrets=False).secrets == made


def test_secrets_that_come_while_one_watches_are_seen(file: Path) -> None:
    assert context(file, make_secrets=False).secrets == {}
    folder = file.parent / ".secrets" / "lab"
    folder.mkdir(parents=True)
    for name in ("ray_token", "api_key"):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(f"copied-{name}\n")
    assert context(file, make_secrets=False).secrets["api_key"] == "copied-api_key"


def test_a_machine_without_the_secrets_is_one_warning_and_says_what_to_copy() -> None:
    found = [finding for finding, _ in ordered(findings(elsewhere()))]
    assert [(f.id, f.severity) for f in found] == [("security.secrets-not-here", "warning")]
    assert "Copy inventories/.secrets/lab" in found[0].fix[0].command
    assert "no ray_token and no api_key" in found[0].found


def test_without_the_secrets_hosts_are_compared_with_each_other() -> None:
    case = changed(elsewhere(), "node-b", secrets={paths.RAY_TOKEN: "ffff"})
    assert ids(case) == ["ray.token", "security.secrets-not-here"]


def test_the_lack_of_one_secret_leaves_the_other_to_be_compared() -> None:
    case = replace(sound(), secrets={paths.API_KEY: "ffff"})
    assert ids(case) == ["security.secret-other", "security.secrets-not-here"]


def test_a_cluster_that_has_none_yet_lacks_nothing() -> None:
    case = elsewhere()
    for host in case.facts:
        case = changed(case, host, secrets={})
    assert "security.secrets-not-here" not in ids(case)
