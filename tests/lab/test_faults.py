"""After any fault the cluster serves again by itself. `make test-faults` writes docs/faults.md.

FAULTS=a,b chooses; KEEP=1 leaves the labs for the next run; FRESH=1 runs what has a result of this
commit again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.faults import more, run, two
from tests.lab.faults.fault import Fault
from tests.lab.harness import Cluster, await_true, describe
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]


def deployed(name: str, hosts: int, folder: Path, edit: dict[str, str]) -> Iterator[Cluster]:
    """A cluster of real Ray and vLLM that serves."""

    def edited(text: str) -> str:
        for old, new in edit.items():
            assert old in text, old
            text = text.replace(old, new)
        return text

    lab = Lab.up(hosts, name=lab_name(name))
    try:
        made = describe(lab, folder, edited)
        made.apply()
        await_true("a completion", lambda: made.complete("Hello", 1) is not None, timeout_s=300)
        yield made
    finally:
        if not os.environ.get("KEEP"):
            lab.down()


def _one(cluster: Cluster, lab: str, fault: Fault, tmp_path: Path) -> None:
    if run.came_back(lab, fault.name) and not os.environ.get("FRESH"):
        pytest.skip("has a result of this commit")
    result = run.one(cluster, lab, fault, tmp_path / "client.log")
    if fault.restarts:
        assert result["overhead_s"] <= run.allowed_s(fault, result), result


def _host(name: str, address: str, gpus: int) -> str:
    return f"  {name}:\n    address: {address}\n    gpus: {gpus}\n"


B, C, D = (_host(f"node-{n}", f"10.77.0.1{i}", 1) for i, n in enumerate("bcd", 2))
HANG = {"serve:\n": f"serve:\n  hang_timeout_s: {two.HANG_S}\n"}
THREE = {B: B + C, "pipeline: 2": "pipeline: 3"}
FOUR = {
    B: B + C + D, "pipeline: 2": "pipeline: 4", "tensor: 1": "tensor: 2", "gpus: 1": "gpus: 2",
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from deployed("t-faults", 2, tmp_path_factory.mktemp("two"), HANG)


@pytest.mark.parametrize("fault", run.chosen(two.FAULTS), ids=lambda fault: fault.name)
def test_two_hosts_come_back(pair: Cluster, fault: Fault, tmp_path: Path) -> None:
    _one(pair, "two", fault, tmp_path)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from deployed("t-faults3", 3, tmp_path_factory.mktemp("three"), HANG | THREE)


@pytest.mark.parametrize("fault", run.chosen(more.THREE), ids=lambda fault: fault.name)
def test_three_hosts_come_back(three: Cluster, fault: Fault, tmp_path: Path) -> None:
    _one(three, "three", fault, tmp_path)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from deployed("t-faults4", 4, tmp_path_factory.mktemp("four"), HANG | FOUR)


@pytest.mark.parametrize("fault", run.chosen(more.FOUR), ids=lambda fault: fault.name)
def test_four_hosts_come_back(four: Cluster, fault: Fault, tmp_path: Path) -> None:
    _one(four, "four", fault, tmp_path)
