"""What lies on the hosts is asked without reading this machine's model, or making secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from vllm_cluster.commands import weights
from vllm_cluster.commands.weights import command
from vllm_cluster.control import model, run_lock, secrets
from vllm_cluster.control.context import Context, outline
from vllm_cluster.placing import place, verify

LAB = Path(__file__).parents[3] / "inventories" / "lab.yaml"


@pytest.fixture
def description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lab's, with a model beside it; whoever hashes that or asks for secrets fails."""

    def never(*_words: Any, **_more: Any) -> Any:
        pytest.fail("this machine's model was read, or a secret made")

    monkeypatch.setattr(model, "manifest_of", never)
    monkeypatch.setattr(secrets, "resolve", never)
    text = LAB.read_text()
    for name in ("id_ed25519", "ssh_config", "known_hosts"):
        text = text.replace(f"../.lab/lab/{name}", name)
        (tmp_path / name).touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    file = tmp_path / "lab.yaml"
    file.write_text(text.replace("../.cache/model/tiny", "model"))
    return file


def test_list_and_remove_ask_the_hosts_alone(
    description: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(known: Context, _names: Any) -> dict[str, Any]:
        return {name: [] for name in known.plan.hosts}

    def removed(known: Context, _names: Any, revision: str) -> dict[str, str]:
        assert (known.plan.weights.model, revision) == ("tiny", "v1")
        return dict.fromkeys(known.plan.hosts, "removed")

    held: list[str] = []

    @contextmanager
    def holding(_what: str, roots: Mapping[str, Callable[[str], list[str]]]) -> Iterator[None]:
        held.extend(f"{name} {roots[name]('true')[-1]}" for name in roots)
        yield

    monkeypatch.setattr(run_lock, "holding", holding)
    monkeypatch.setattr(verify, "listed", listed)
    monkeypatch.setattr(verify, "remove", removed)
    done = CliRunner().invoke(command, ["list", str(description)])
    assert (done.output, done.exit_code) == ("node-a: nothing\nnode-b: nothing\n", 0)
    assert held == [], "who only looks needs no lock"
    done = CliRunner().invoke(command, ["remove", str(description), "v1"])
    assert held == ["node-a sudo -n true", "node-b sudo -n true"]
    assert (done.output, done.exit_code) == ("node-a: removed\nnode-b: removed\n", 0)
    assert not (description.parent / ".secrets").exists()


@pytest.mark.parametrize("words", [["place"], ["verify"], ["remove", "v1"]])
def test_nothing_is_changed_while_another_run_is_under_way(
    description: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def busy(what: str, _roots: Any) -> Any:
        raise run_lock.LockedError(f"alice runs cluster.py; {what} must wait")

    def acted(*_words: Any, **_more: Any) -> Any:
        pytest.fail("it acted without the lock")

    monkeypatch.setattr(run_lock, "holding", busy)
    monkeypatch.setattr(weights, "context", outline)
    monkeypatch.setattr(place, "place", acted)
    monkeypatch.setattr(verify, "verify", acted)
    monkeypatch.setattr(verify, "remove", acted)
    done = CliRunner().invoke(command, [words[0], str(description), *words[1:]])
    assert done.exit_code == 1
    assert f"refused: alice runs cluster.py; vllm-cluster weights {words[0]}" in done.output


def test_reading_without_repair_needs_no_lock(
    description: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_words: Any) -> Any:
        pytest.fail("the lock was asked for")

    read = SimpleNamespace(read_bytes=0, whole=[], failed={})
    monkeypatch.setattr(run_lock, "holding", never)
    monkeypatch.setattr(weights, "context", outline)
    monkeypatch.setattr(verify, "verify", lambda *_words, **_more: read)
    done = CliRunner().invoke(command, ["verify", str(description), "--no-repair"])
    assert done.exit_code == 0


def test_a_share_without_a_revision_is_known_by_its_content(
    description: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notes are named after that, so that there the model here has to be read."""
    text = description.read_text() + "\nweights: {directory: /srv/shared, storage: shared}\n"
    description.write_text(
        text.replace("  directory: tiny\n", "  directory: tiny\n  revision: v1\n")
    )
    assert outline(description).plan.weights.revision == "v1"
    description.write_text(text)
    whole: Any = object()
    monkeypatch.setattr("vllm_cluster.control.context.context", lambda _file, **_words: whole)
    assert outline(description) is whole
