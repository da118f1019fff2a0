"""What a revision was once, it stays: on every machine, in every run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vllm_cluster.control import lock
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import Cluster, DescriptionError, load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
ONE, OTHER = ModelId("v1", "a" * 64, 7), ModelId("v1", "b" * 64, 7)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "prod.yaml").write_text(PROD.read_text())
    return load(tmp_path / "prod.yaml")


def test_nothing_is_known_before_the_first_run(cluster: Cluster) -> None:
    assert lock.read(cluster, "v1") is None


def test_what_is_recorded_is_read_and_recorded_once(cluster: Cluster) -> None:
    assert lock.record(cluster, ONE)
    assert lock.read(cluster, "v1") == ONE
    written = lock.lock_file(cluster).read_bytes()
    assert not lock.record(cluster, ONE)
    assert lock.lock_file(cluster).read_bytes() == written


def test_another_model_under_that_name_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    lock.record(cluster, ONE)
    written = lock.lock_file(cluster).read_bytes()
    with pytest.raises(DescriptionError, match=r"v1, whose files are b{16}; prod\.lock\.json says"):
        lock.record(cluster, OTHER)
    assert lock.lock_file(cluster).read_bytes() == written


def test_other_revisions_stay_as_they_are(cluster: Cluster) -> None:
    lock.record(cluster, ONE)
    lock.record(cluster, ModelId("v2", "c" * 64, 9))
    assert lock.read(cluster, "v1") == ONE
    assert len(json.loads(lock.lock_file(cluster).read_text())["models"]) == 2


def test_no_other_file_stays_beside_the_description(cluster: Cluster) -> None:
    folder = cluster.file.parent
    folder.joinpath(".prod.lock.json.guard").touch()  # of a run that was killed
    lock.record(cluster, ONE)
    with pytest.raises(DescriptionError):
        lock.record(cluster, OTHER)
    assert sorted(file.name for file in folder.iterdir()) == ["prod.lock.json", "prod.yaml"]


def test_what_many_write_at_once_is_all_there(cluster: Cluster) -> None:
    models = [ModelId(f"v{number}", "a" * 64, 7) for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda model: lock.record(cluster, model), models))
    assert len(json.loads(lock.lock_file(cluster).read_text())["models"]) == len(models)


NAME = "llama-3.3-70b-instruct@v1"
BROKEN = ["{", "[]", f'{{"models": {{"{NAME}": {{"identity": 5}}}}}}', '{"models": 1}',
          f'{{"models": {{"{NAME}": {{"identity": "x", "bytes": 1}}}}}}']  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_is_not_ours_is_named(cluster: Cluster, text: str) -> None:
    lock.lock_file(cluster).write_text(text)
    with pytest.raises(DescriptionError, match=r"prod\.lock\.json"):
        lock.read(cluster, "v1")
