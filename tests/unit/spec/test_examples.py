"""The descriptions that people copy are sound."""

from pathlib import Path

import pytest

from vllm_cluster.spec import DescriptionError, load

INVENTORIES = Path(__file__).parents[3] / "inventories"


@pytest.mark.parametrize("name", ["prod.yaml", "lab.yaml"])
def test_an_example_is_a_sound_description(name: str) -> None:
    assert load(INVENTORIES / name).description.head == "node-a"


def test_sizes_are_bytes() -> None:
    memory = load(INVENTORIES / "prod.yaml").description.memory
    assert (memory.shm, memory.object_store) == (32 * 2**30, 2 * 2**30)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match=r"none\.yaml: found No such file"):
        load(tmp_path / "none.yaml")


def test_a_path_of_this_machine_starts_at_the_description(tmp_path: Path) -> None:
    cluster = load(INVENTORIES / "lab.yaml")
    assert cluster.local("../x/y") == INVENTORIES.parent / "x" / "y"
    assert cluster.local(str(tmp_path)) == tmp_path
