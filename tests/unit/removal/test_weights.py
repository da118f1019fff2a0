"""Weights go, and what people had where we placed them stays."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.placing.remote import Remote
from vllm_cluster.plan import paths
from vllm_cluster.plan.owned import parse
from vllm_cluster.removal import look
from vllm_cluster.removal.action import Removal
from vllm_cluster.removal.decide import Options, decide
from vllm_cluster.weights.agent.adopt import Adoption, adopt
from vllm_cluster.weights.agent.layout import Layout
from vllm_cluster.weights.agent.publish import pin, remove, unpin, users_of

MODEL = "llama-3.3-70b-instruct"
PLACES = (".store", ".staging", ".jobs", ".pins", MODEL)
OTHERS = "other@0123456789abcdef"


class Machine:
    """A host whose weights' root and record lie in a scratch directory."""

    def __init__(self, at: Path) -> None:
        self.at, self.root = at, at / "models"
        self.root.mkdir()
        self.source = at / "source"
        self.source.mkdir()
        (self.source / "config.json").write_text("{}")
        (self.source / "model.safetensors").write_bytes(b"x" * 4096)

    def bash(self, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        here = text.replace(paths.CONFIG, f"{self.at}{paths.CONFIG}")
        return subprocess.run(
            ["bash", *words, "-s"], input=here, capture_output=True, text=True, check=False
        )

    @property
    def journal(self) -> Path:
        return Path(f"{self.at}{paths.OWNED}/journal")

    def records_as_before(self) -> None:
        """As deploys recorded that did not look what was there."""
        self.journal.parent.mkdir(parents=True)
        lines = [f"weights\t{self.root / name}\tabsent\n" for name in PLACES]
        self.journal.write_text("".join(lines))

    def records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Remote, "argv", lambda _self, words: words)
        here = lambda _self, words: self.bash(words[2])  # noqa: E731
        monkeypatch.setattr(Remote, "run", here)
        host: Any = SimpleNamespace(name="a")
        weights: Any = SimpleNamespace(root=str(self.root), model=MODEL)
        Remote(host, host, weights).record()

    def places(self, source: Path | None = None) -> Path:
        layout = Layout(self.root)
        layout.make()
        wish = Adoption(source or self.source, MODEL, "r1", reserve_bytes=0)
        return adopt(layout, wish, lambda _done, _total: None).directory

    def removes(self, *, keep_weights: bool = False) -> Removal:
        out = self.bash(look.script()).stdout
        options = Options(keep_weights=keep_weights)
        return decide(look.parse(out.splitlines()), str(self.root), options)

    def down(self) -> dict[str, str]:
        """What is left alone is told by what it said."""
        kept = {}
        for action in self.removes().actions:
            if action.what.startswith("weights "):
                done = self.bash(action.shell, "-e")
                assert done.returncode in {0, 9}, done.stderr
                if done.returncode:
                    kept[action.what.partition(" (")[0]] = done.stdout.strip()
        return kept


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_we_brought_goes_whole(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.records(monkeypatch)
    machine.places()
    for name in (".staging/.hub/blob", f".staging/{OTHERS}.pushed/part", f".jobs/{OTHERS}.log"):
        (machine.root / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / name).write_text("")
    assert machine.down() == {}
    assert list(machine.root.iterdir()) == []
    assert machine.down() == {}, "cut off, it is done again"


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("adopted", [True, False])
def test_a_model_directory_that_people_had_stays_with_their_files(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, old: bool, adopted: bool
) -> None:
    mine = machine.root / MODEL
    machine.source.rename(mine)
    theirs = {path.name: path.read_bytes() for path in mine.iterdir()}
    (mine / "latest").symlink_to("config.json")
    if old:
        machine.records_as_before()
    else:
        machine.records(monkeypatch)
    source = mine if adopted else machine.at / "other"
    if not adopted:
        source.mkdir()
        (source / "config.json").write_text("{}")
        (source / "model.safetensors").write_bytes(b"y" * 4096)
    machine.places(source)
    assert (mine / "r1").is_symlink()
    planned = {kept.what: kept.why for kept in machine.removes().kept}
    assert planned[str(mine)].endswith("config.json latest model.safetensors")
    words = "not ours, and stays: config.json latest model.safetensors"
    assert machine.down() == {f"weights our part of {mine}": words}
    assert {p.name: p.read_bytes() for p in mine.iterdir() if not p.is_symlink()} == theirs
    assert (mine / "latest").is_symlink()
    assert [path.name for path in machine.root.iterdir()] == [MODEL]


def test_a_directory_that_was_there_and_empty_is_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / MODEL).mkdir()
    machine.records(monkeypatch)
    machine.places()
    assert machine.down() == {}
    assert [path.name for path in machine.root.iterdir()] == [MODEL]


def test_of_a_store_that_was_there_the_copies_of_our_models_go(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that a reinstalled machine brought along."""
    for name in (f".store/{OTHERS}", f".pins/{OTHERS}", f".staging/{OTHERS}", ".staging/.hub"):
        (machine.root / name).mkdir(parents=True)
    machine.records(monkeypatch)
    placed = machine.places()
    told = machine.down()
    assert not placed.exists()
    assert told[f"weights our part of {machine.root}/.store"].endswith(f": {OTHERS}")
    assert (machine.root / ".staging/.hub").is_dir()
    assert (machine.root / f".pins/{OTHERS}").is_dir()
    assert not (machine.root / MODEL).exists()


def test_in_a_store_of_ours_a_strange_file_stays(machine: Machine) -> None:
    machine.records_as_before()
    machine.places()
    (machine.root / ".store/notes of alice@work").write_text("mine")
    told = machine.down()
    assert told[f"weights our part of {machine.root}/.store"].endswith(": notes of alice@work")
    assert [path.name for path in (machine.root / ".store").iterdir()] == ["notes of alice@work"]


def test_what_is_recorded_is_what_was_there_first(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / MODEL).symlink_to("nowhere")
    for _ in range(2):
        machine.records(monkeypatch)
        (machine.root / ".store").mkdir(exist_ok=True)
    first = parse(machine.journal.read_text().splitlines()).first("weights")
    assert first[str(machine.root / MODEL)] == "there"
    assert first[str(machine.root / ".store")] == "absent"


def test_kept_weights_are_counted_without_what_is_not_ours(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / MODEL).mkdir()
    (machine.root / MODEL / "big").write_bytes(b"x" * 2**20)
    machine.records(monkeypatch)
    machine.places()
    out = machine.bash(look.script()).stdout
    sizes = look.parse(out.splitlines()).weights_bytes
    assert sizes[str(machine.root / MODEL)] < 2**20
    assert sizes[str(machine.root / ".store")] > 4096
    kept = machine.removes(keep_weights=True).kept
    assert [k.what for k in kept if "our part of" in k.what]


def test_weights_that_stay_are_used_by_no_unit_or_generation_that_went(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.records(monkeypatch)
    key = machine.places().name
    layout = Layout(machine.root)
    for unit in ("vllm.service", "generation-02e4c9d836bd", "theirs.service"):
        pin(layout, key, unit)
    with machine.journal.open("a") as journal:
        journal.write(f"file\t{paths.UNITS}/vllm.service\tabsent\n")
    for _ in range(2):
        actions = machine.removes(keep_weights=True).actions
        [notes] = [each for each in actions if each.what.startswith("notes of who uses")]
        assert machine.bash(notes.shell, "-e").returncode == 0
        assert users_of(layout, key) == ["theirs.service"]
    unpin(layout, key, "theirs.service")
    pin(layout, key, "vllm.service")
    assert machine.bash(notes.shell, "-e").returncode == 0
    assert list(layout.pins.iterdir()) == []
    remove(layout, key)
