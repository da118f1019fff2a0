"""What a rebuild goes on with, and what it leaves behind as ended."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.unit.rebuild.test_waits import NEW, OLD, PROD
from vllm_cluster.commands import rebuild as command
from vllm_cluster.control import fingerprints
from vllm_cluster.control.context import Context
from vllm_cluster.control.fingerprints import Kept
from vllm_cluster.plan import make_plan
from vllm_cluster.rebuild import begun, run
from vllm_cluster.rebuild.begun import Begun
from vllm_cluster.rebuild.machine import Seen
from vllm_cluster.rebuild.run import Rebuild, RebuildError
from vllm_cluster.spec import load

NOW = {"package a": "2"}
THEN = Kept({"package a": "1"}, 12.0)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Rebuild:
    """Of a host that lives, is deployed, and consists of NOW."""
    shutil.copy(PROD, tmp_path / "prod.yaml")
    cluster = load(tmp_path / "prod.yaml")
    plan = make_plan(cluster.description)
    monkeypatch.setattr(run, "look", lambda _cluster, _host: Seen(OLD, "deployed"))
    monkeypatch.setattr(Rebuild, "_fingerprint", lambda _self: NOW)
    known = Context(cluster, plan, None, None, None, {})
    return Rebuild(known, plan.hosts["node-b"], said.append, lambda _: False, False, 5.0)


def left(work: Rebuild, since_s: float) -> None:
    """A rebuild that ended in the middle."""
    begun.write(work.known.cluster, work.name, Begun(NEW, THEN, since_s))


def deployed(work: Rebuild) -> None:
    """A deploy that came to its end on the host."""
    fingerprints.keep(work.known.cluster, work.name, NOW)


def test_it_goes_on_with_one_that_no_deploy_has_ended(work: Rebuild, said: list[str]) -> None:
    deployed(work)
    left(work, time.time())
    assert work.before() == THEN
    assert work.resumed() == begun.read(work.known.cluster, work.name)
    assert time.strftime("%Y-%m-%d") in said[0]
    assert "deployed to at once" in said[0]


def test_one_that_a_later_deploy_has_ended_is_dropped(work: Rebuild, said: list[str]) -> None:
    left(work, time.time() - 90 * 86400)
    deployed(work)
    before = work.before()
    assert before is not None
    assert before.values == NOW
    assert "was ended by the deploy of" in said[0]
    assert work.resumed() is None
    assert not begun.file_of(work.known.cluster, work.name).exists()


def test_a_file_without_its_time_is_as_old_as_it_looks(work: Rebuild) -> None:
    left(work, 0.0)
    file = begun.file_of(work.known.cluster, work.name)
    text = file.read_text()
    assert ', "since_s": 0.0' in text
    file.write_text(text.replace(', "since_s": 0.0', ""))
    found = begun.read(work.known.cluster, work.name)
    assert found is not None
    assert found.since_s == file.stat().st_mtime


@pytest.mark.parametrize("code", [0, 1])
def test_its_own_deploy_does_not_end_it(
    work: Rebuild, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """On this host it came to its end; on another it failed, or the comparison has yet to come."""
    left(work, time.time())

    def deploy(*_words: Any) -> int:
        deployed(work)
        return code

    monkeypatch.setattr(run, "run_deploy", deploy)
    if code:
        with pytest.raises(RebuildError):
            work.deploy()
    else:
        work.deploy()
    resumed = work.resumed()
    assert resumed is not None
    assert (resumed.key, resumed.before) == (NEW, THEN)


def test_anew_waits_for_another_machine_and_compares_with_the_same(work: Rebuild) -> None:
    left(work, time.time())
    anew = replace(work, anew=True)
    assert anew.before() == THEN, "what is there now may be half made"
    assert anew.resumed() is None
    assert work.resumed() is not None, "until the machine is there"


def test_a_key_that_cannot_be_kept_is_bad_input_and_nothing_is_done(
    work: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work.known.cluster.file
    file.write_text(file.read_text().replace("ssh:\n", "ssh:\n  known_hosts_file: /dev/null\n", 1))
    known = replace(work.known, cluster=load(file))
    monkeypatch.setattr(command, "context", lambda _file: known)

    def touched(*_words: Any, **_more: Any) -> int:
        raise AssertionError("it began")

    monkeypatch.setattr(command, "_run", touched)
    done = CliRunner().invoke(command.command, [str(file), "--host", "node-b", "--yes"])
    assert done.exit_code == 2
    assert "node-b: ssh -G: UserKnownHostsFile /dev/null names no file" in done.output


@pytest.mark.parametrize("going_on", [True, False])
def test_a_person_is_asked_what_is_meant(
    work: Rebuild, monkeypatch: pytest.MonkeyPatch, *, going_on: bool
) -> None:
    if going_on:
        left(work, time.time())
    asked: list[str] = []
    monkeypatch.setattr(click, "confirm", asked.append)
    with pytest.raises(RebuildError, match="nothing was done"):
        command._run(work, None, yes=False)
    words = "Go on with the rebuild of node-b" if going_on else "Make node-b again from nothing"
    assert asked[0].startswith(words)
