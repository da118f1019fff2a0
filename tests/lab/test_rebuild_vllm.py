"""A wiped host made again under real Ray and vLLM: the same fingerprint, the same tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.harness import ROOT, Cluster, await_true, describe
from tests.lab.names import lab_name
from tests.lab.rebuilding import command, own_known_hosts, rebuild
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3000)]
NAME = lab_name("t-rebuild-v")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that answers, under a lock."""
    folder = tmp_path_factory.mktemp("rebuild")
    lab = Lab.up(2, name=NAME)
    try:
        made = describe(lab, folder, own_known_hosts(lab, folder))
        made.apply()
        assert command(made, "lock").returncode == 0
        yield made
    finally:
        lab.down()


@pytest.mark.parametrize("host", ["node-b", "node-a"])
def test_a_rebuilt_host_serves_as_before(cluster: Cluster, host: str) -> None:
    reference: Any = json.loads((ROOT / ".cache/model/reference.json").read_text())
    ask = (reference["prompt"], len(reference["token_ids"]))
    assert cluster.complete(*ask)["token_ids"] == reference["token_ids"]
    run = rebuild(cluster, host, "--yes", "--accept-new-host-key")
    run.await_words("its old system still answers")
    cluster.lab.host(host).wipe()
    assert run.end() == 0, run.text
    assert f"{host}: the same fingerprint" in run.text
    await_true("a completion", lambda: cluster.complete(reference["prompt"], 1) is not None, 600)
    assert cluster.complete(*ask)["token_ids"] == reference["token_ids"]
    assert cluster.planned() == {}
    assert command(cluster, "lock", "--check").returncode == 0
