"""Sixteen hosts: looked at in seconds, and before anything was deployed to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import with_standin
from tests.lab.doctor import suite
from tests.lab.doctor.many import described
from tests.lab.harness import Cluster
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("FAULTS") != "all", reason="sixteen hosts: FAULTS=all"),
]
HOSTS = 16
SECONDS = 6


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Sixteen bare hosts and a description of them."""
    lab = Lab.up(HOSTS, name=lab_name("t-doctor-16"))
    try:
        yield with_standin(_folder(tmp_path_factory), lab, described(lab))
    finally:
        lab.down()


def _folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("sixteen")


def test_sixteen_bare_hosts_are_looked_at_in_seconds(bare: Cluster) -> None:
    said = min((suite.doctor(bare) for _ in range(3)), key=lambda said: said.seconds)
    assert not said.deployed
    assert [finding["id"] for finding in said.findings] == []
    assert said.seconds < SECONDS


def test_half_of_them_off_are_told_and_the_rest_is_still_looked_at(bare: Cluster) -> None:
    off = bare.lab.hosts[HOSTS // 2 :]
    for host in off:
        host.power_cut()
    suite.touched(bare)
    said = suite.doctor(bare)
    silent = {f["host"] for f in said.findings if f["id"] == "host.unreachable"}
    assert silent == {host.name for host in off}
    assert said.code == 1, "peers that are gone are failing, not only unseen"
    assert all(f["caused_by"] for f in said.findings if f["id"] == "network.peer-unreachable")
