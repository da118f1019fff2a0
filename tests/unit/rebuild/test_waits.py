"""What a rebuild waits for, and what it keeps for the next run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vllm_cluster.control import fingerprints
from vllm_cluster.control.fingerprints import Kept
from vllm_cluster.rebuild import begun
from vllm_cluster.rebuild.begun import Begun
from vllm_cluster.rebuild.machine import Seen
from vllm_cluster.rebuild.run import waits_for
from vllm_cluster.spec import Cluster, load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
OLD, NEW, SEEDS = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB", "ssh-ed25519 CCCC"


@pytest.mark.parametrize(
    ("seen", "expected", "words"),
    [
        (Seen("", "silent", "timed out"), "", "no answer over SSH (timed out)"),
        (Seen(OLD, "deployed"), "", "its old system"),
        (Seen(OLD, "closed", "denied"), "", "its old system"),
        (Seen(NEW, "deployed"), "", "its old system"),  # known by a key of another type
        (Seen(SEEDS, "deployed"), SEEDS, "its old system"),
        (Seen(OLD, "bare"), "", ""),  # installed with the keys of before
        (Seen(NEW, "closed", "denied"), "", "lets us not in yet (denied)"),  # an installer's sshd
        (Seen(NEW, "bare"), "", ""),
        (Seen(NEW, "bare"), SEEDS, "not its seed's key"),
        (Seen(SEEDS, "bare"), SEEDS, ""),
        (Seen(SEEDS, "closed", "booting"), SEEDS, "(booting)"),
    ],
)
def test_it_waits_for_the_bare_machine(seen: Seen, expected: str, words: str) -> None:
    found = waits_for(seen, [OLD], expected)
    assert words in found
    assert bool(words) == bool(found)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    shutil.copy(PROD, tmp_path / "prod.yaml")
    return load(tmp_path / "prod.yaml")


@pytest.mark.parametrize("before", [None, Kept({"package a": "1"}, 12.0)])
def test_a_rebuild_that_has_not_ended_is_remembered(cluster: Cluster, before: Kept | None) -> None:
    assert begun.read(cluster, "node-b") is None
    begun.write(cluster, "node-b", Begun(NEW, before))
    assert begun.read(cluster, "node-b") == Begun(NEW, before)
    assert begun.read(cluster, "node-a") is None
    begun.end(cluster, "node-b")
    assert begun.read(cluster, "node-b") is None


def test_a_fingerprint_is_kept_until_the_next(cluster: Cluster) -> None:
    assert fingerprints.kept(cluster, "node-b") is None
    fingerprints.keep(cluster, "node-b", {"package a": "1"})
    fingerprints.keep(cluster, "node-b", {"package a": "2"})
    found = fingerprints.kept(cluster, "node-b")
    assert found is not None
    assert found.values == {"package a": "2"}


@pytest.mark.parametrize("text", ["", "[]", '{"values": 1, "taken_s": 1}', '{"values": {}}'])
def test_a_broken_fingerprint_is_none(cluster: Cluster, text: str) -> None:
    fingerprints.keep(cluster, "node-b", {})
    fingerprints.file_of(cluster, "node-b").write_text(text)
    assert fingerprints.kept(cluster, "node-b") is None
