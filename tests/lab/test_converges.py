"""pyinfra killed at every boundary between operations: the next run always ends in one state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.conftest import with_standin
from tests.lab.harness import DEPLOY, ROOT, Cluster
from tests.lab.names import lab_name
from vllm_cluster.facts.fingerprint import parse, script
from vllm_cluster.lab import Lab
from vllm_cluster.plan.fingerprint import differences

pytestmark = [pytest.mark.lab, pytest.mark.timeout(7200)]
NAME = lab_name("t-converge")
WEIGHTS = "/var/lib/vllm-cluster/models"
MAX_OPERATIONS = 100


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two bare hosts and a description of them."""
    lab = Lab.up(2, name=NAME)
    try:
        yield with_standin(tmp_path_factory.mktemp("converge"), lab)
    finally:
        lab.down()


def killed_before(cluster: Cluster, number: int, folder: Path) -> list[str]:
    """Run pyinfra until it stands before its operation `number` and kill it there.

    The operations that were reached; empty when it came to its end before.
    """
    file = folder / "reached"
    argv = [sys.executable, "-m", "tests.lab.killed_pyinfra", str(file), str(number)]
    done = subprocess.run(
        [*argv, "-y", "--fail-percent", "0", str(cluster.inventory), DEPLOY],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode == -signal.SIGKILL:
        return file.read_text().splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    return []


def fingerprints(cluster: Cluster) -> dict[str, dict[str, str]]:
    """What each host consists of, read without pyinfra."""
    found = {}
    for host in cluster.lab.hosts:
        done = host.ssh("sh -s", stdin=script(WEIGHTS))
        assert done.returncode == 0, done.stderr
        found[host.name] = parse(done.stdout.splitlines())
    return found


def assert_same(first: dict[str, dict[str, str]], second: dict[str, dict[str, str]]) -> None:
    for name, found in first.items():
        assert differences(found, second[name]) == [], name


@pytest.fixture(scope="module")
def whole(bare: Cluster) -> dict[str, dict[str, str]]:
    """The fingerprints after one run on bare hosts that nothing disturbed; bare again after."""
    bare.apply()
    found = fingerprints(bare)
    wipe(bare)
    return found


def wipe(cluster: Cluster) -> None:
    """Bare operating systems again, all at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: host.wipe(), cluster.lab.hosts))


def test_the_fingerprint_sees_what_a_host_consists_of(whole: dict[str, dict[str, str]]) -> None:
    kinds = {key.split()[0] for found in whole.values() for key in found}
    assert kinds >= {"package", "file", "link", "unit", "rules", "image", "container", "weights"}
    assert whole["node-a"]["unit vllm.service"].split()[:3] == ["loaded", "active", "enabled"]
    assert not any(key.endswith((".new", ".part")) for found in whole.values() for key in found)


def test_killed_before_each_operation_one_after_the_other_it_ends_in_the_same_state(
    bare: Cluster, whole: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """Each run gets one operation further than the last, so that no operation is ever finished
    in the run that began it, and nothing that a run remembers can help."""
    reached: list[str] = []
    for number in range(1, MAX_OPERATIONS):
        got = killed_before(bare, number, tmp_path)
        if not got:
            break
        assert len(got) == number
        reached = got
    assert reached[-1].startswith("Fingerprint"), "the last boundary is before the last operation"
    assert_same(whole, fingerprints(bare))
    assert bare.planned() == {}


@pytest.mark.skipif(
    not os.environ.get("EVERY_BOUNDARY"), reason="a bare host for each boundary takes half an hour"
)
def test_killed_once_at_any_operation_the_next_whole_run_ends_in_the_same_state(
    bare: Cluster, whole: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    for number in range(1, MAX_OPERATIONS):
        began = time.monotonic()
        wipe(bare)
        wiped = time.monotonic()
        got = killed_before(bare, number, tmp_path)
        if not got:
            break
        killed = time.monotonic()
        bare.apply()
        assert_same(whole, fingerprints(bare))
        print(
            f"{number}: killed before {got[-1]!r}; bare {wiped - began:.0f} s, until the kill "
            f"{killed - wiped:.0f} s, whole run {time.monotonic() - killed:.0f} s",
            flush=True,
        )
