"""The descriptions that people copy are sound."""

import re
from pathlib import Path

import pytest

from vllm_cluster.spec import DescriptionError, load

INVENTORIES = Path(__file__).parents[3] / "inventories"


@pytest.mark.parametrize("name", ["prod.yaml", "lab.yaml"])
def test_an_example_is_a_sound_description(name: str) -> None:
    assert load(INVENTORIES / name).description.head == "node-a"


def test_what_an_example_shows_as_a_default_is_one(tmp_path: Path) -> None:
    text = (INVENTORIES / "prod.yaml").read_text()
    shown, count = re.subn(r"^#(?=( {2,})?[a-z_]+:)", "", text, flags=re.MULTILINE)
    assert count == 40
    (tmp_path / "prod.yaml").write_text(shown)
    plain, full = (load(folder / "prod.yaml").description for folder in (INVENTORIES, tmp_path))
    assert full == plain
    for section in ("names", "driver", "toolkit", "docker", "kernel", "clock", "storage", "limits"):
        assert full.model_fields_set >= {section}, section
        assert getattr(full, section).model_fields_set == {
            *type(getattr(full, section)).model_fields
        }


def test_sizes_are_bytes() -> None:
    memory = load(INVENTORIES / "prod.yaml").description.memory
    assert (memory.shm, memory.object_store) == (32 * 2**30, 2 * 2**30)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match=r"none\.yaml: no such file"):
        load(tmp_path / "none.yaml")


def test_a_path_of_this_machine_starts_at_the_description(tmp_path: Path) -> None:
    cluster = load(INVENTORIES / "lab.yaml")
    assert cluster.local("../x/y") == INVENTORIES.parent / "x" / "y"
    assert cluster.local(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("word", ["yes", "'yes'"])
def test_the_word_yes_is_meant_as_it_is_written(tmp_path: Path, word: str) -> None:
    text = (INVENTORIES / "prod.yaml").read_text()
    (tmp_path / "prod.yaml").write_text(text.replace("ssh:\n", f"ssh:\n  host_keys: {word}\n", 1))
    assert load(tmp_path / "prod.yaml").description.ssh.host_keys == "yes"


def test_the_word_no_is_not_taken_for_a_kind_of_key(tmp_path: Path) -> None:
    text = (INVENTORIES / "prod.yaml").read_text()
    (tmp_path / "prod.yaml").write_text(text.replace("ssh:\n", "ssh:\n  host_keys: no\n", 1))
    with pytest.raises(DescriptionError, match=r"ssh\.host_keys: found .*; accepted: yes"):
        load(tmp_path / "prod.yaml")
