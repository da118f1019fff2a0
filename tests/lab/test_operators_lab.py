"""Two operators on one cluster: the second is refused, and nobody is locked out for long."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.conftest import deployed
from tests.lab.harness import BIN, DEPLOY, ROOT, Cluster, await_true
from tests.lab.names import lab_name
from vllm_cluster.plan.run_lock import EXPIRY_S, LOCK

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]
NAME = lab_name("t-operators")
HOSTS = ("node-a", "node-b")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with deployed(NAME, tmp_path_factory.mktemp("operators")) as made:
        yield made


def begin(cluster: Cluster, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BIN / "pyinfra", *options, str(cluster.inventory), DEPLOY],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def silent(cluster: Cluster, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that holds the lock and has fallen silent after its first operations."""
    argv = [sys.executable, "-m", "tests.lab.killed_pyinfra", str(folder / "reached"), "4"]
    first = subprocess.Popen(
        [*argv, "-y", "--fail-percent", "0", str(cluster.inventory), DEPLOY],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        stdin=subprocess.DEVNULL, env={**os.environ, "BOUNDARY_SIGNAL": "SIGSTOP"},
    )  # fmt: skip
    try:
        await_true("the first run stands", lambda: state(first) in "TZ", 60)
        assert state(first) == "T", first.communicate()[0]
        yield first
    finally:
        if first.poll() is None:
            first.kill()
        first.communicate()


def state(process: subprocess.Popen[str]) -> str:
    text = Path(f"/proc/{process.pid}/stat").read_text()
    return text.rpartition(")")[2].split()[0]


def locked(cluster: Cluster, host: str) -> bool:
    """Whether flock(1) itself finds the lock taken."""
    return cluster.lab.host(host).ssh(f"flock -n {LOCK} true").returncode != 0


def free(cluster: Cluster) -> bool:
    return not any(locked(cluster, host) for host in HOSTS)


def test_the_second_is_refused_with_the_firsts_name_and_changes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.on("node-b", "echo '# drift' >> /etc/vllm-cluster/cluster.env")
    with silent(cluster, tmp_path):
        assert locked(cluster, "node-a")
        assert locked(cluster, "node-b")
        second = cluster.pyinfra("-y")
        said = second.stdout + second.stderr
        assert second.returncode == 1, said
        for host in HOSTS:
            assert f"[{host}] refused: " in said, said
        assert f"on {socket.gethostname()} runs cluster.py since 20" in said, said
        assert "nothing was changed" in said
        assert "Traceback" not in said
        drift = cluster.on("node-b", "tail -n1 /etc/vllm-cluster/cluster.env")
        assert drift == "# drift\n"
        # Looking is free.
        assert cluster.planned() != {}
    # The first was killed as kill -9 does: nobody is locked out.
    cluster.apply()
    assert cluster.planned() == {}
    await_true("both locks are free", lambda: free(cluster), 10)


def test_a_machine_that_slept_loses_the_lock_and_ends_when_it_wakes(
    cluster: Cluster, tmp_path: Path
) -> None:
    with silent(cluster, tmp_path) as first:
        waited = await_true("the lock is free", lambda: free(cluster), EXPIRY_S + 30)
        assert waited > EXPIRY_S / 2
        cluster.apply()
        first.send_signal(signal.SIGCONT)
        said, _ = first.communicate(timeout=60)
        assert first.returncode == 1, said
        assert "the lock of this run is lost" in said, said


def test_a_rebooted_host_locks_nobody_out(cluster: Cluster, tmp_path: Path) -> None:
    with silent(cluster, tmp_path):
        for host in HOSTS:
            assert locked(cluster, host)
            cluster.lab.host(host).power_off()
            cluster.lab.host(host).power_on()
        cluster.apply()


def test_of_two_that_begin_together_one_wins(cluster: Cluster) -> None:
    for _ in range(4):
        runs = [begin(cluster, "-y", "--fail-percent", "0") for _ in range(2)]
        said = [run.communicate(timeout=300)[0] for run in runs]
        codes = sorted(run.returncode for run in runs)
        assert codes[0] == 0, said
        if codes == [0, 1]:
            loser = next(text for run, text in zip(runs, said, strict=True) if run.returncode)
            assert "refused: " in loser
            return
        time.sleep(1)
    pytest.fail("the two never met")
