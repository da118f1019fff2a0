"""`down` takes nothing from a host of another cluster."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.removal.test_decide import FOUND
from vllm_cluster.commands import down
from vllm_cluster.plan.members import Members
from vllm_cluster.plan.owned import Record
from vllm_cluster.removal.look import Found
from vllm_cluster.spec import Cluster, load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
OTHER = Members("other", {"node-c": "10.9.0.3", "node-d": "10.9.0.4"})


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "prod.yaml").write_text(PROD.read_text())
    return load(tmp_path / "prod.yaml")


def of(who: Members) -> Found:
    return replace(FOUND, members=who.text())


def test_a_host_of_another_cluster_is_refused_with_the_fix(cluster: Cluster) -> None:
    left = down._obstacle(cluster, "node-x", of(OTHER))
    assert left.startswith("node-x belongs to other")
    assert "--host node-x --forget` strikes it off" in left
    described = down._obstacle(cluster, cluster.description.head, of(OTHER))
    assert "deploy first" in described


def test_a_host_of_this_cluster_or_of_none_that_it_knows_is_not(cluster: Cluster) -> None:
    ours = Members(cluster.description.cluster)
    assert down._obstacle(cluster, "node-x", of(ours)) == ""
    for says in ("", "{}", "half a fi"):
        assert down._obstacle(cluster, "node-x", replace(FOUND, members=says)) == ""


def test_a_host_that_was_cleaned_is_refused_by_no_list_that_it_kept(cluster: Cluster) -> None:
    bare = replace(of(OTHER), record=Record())
    assert down._obstacle(cluster, "node-x", bare) == ""


def test_what_a_host_of_another_cluster_says_of_members_is_not_ours(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Members(cluster.description.cluster, {}, {"node-x": "10.8.0.9"})
    said = {"node-a": OTHER.text(), "node-b": ours.text()}

    def answers(argv: list[str], *_: object) -> subprocess.CompletedProcess[str]:
        name = next(n for n in said if f"at-{n}" in " ".join(argv))
        return subprocess.CompletedProcess(argv, 0, said[name], "")

    monkeypatch.setattr("vllm_cluster.removal.run.run", answers)
    known = {name: f"at-{name}" for name in said}
    assert down._who_left(cluster, known) == {"node-x": "10.8.0.9"}
