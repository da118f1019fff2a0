"""A run that is hurt on its way: nothing half is shown, and the next one goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.harness import await_true
from tests.lab.images.fleet import STAGED, Fleet, fleet, plain
from tests.lab.images.made import Made, make
from vllm_cluster.lab.host import Host

pytestmark = pytest.mark.lab

MB = 1_000_000
SIZE = 160 * MB


@pytest.fixture(scope="module")
def made() -> Made:
    return make([(21, 70 * MB), (22, 60 * MB), (23, 30 * MB)])


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory, made: Made) -> Iterator[Fleet]:
    with fleet("t-images-hurt", tmp_path_factory.mktemp("images-hurt"), hosts=3) as hosts:
        hosts.want(made)
        yield hosts


@pytest.fixture
def hosts(module: Fleet) -> Iterator[Fleet]:
    module.empty()
    module.shape("80mbit")  # 16 s a link: time enough to be hurt in
    yield module
    for host in module.hosts:
        host.power_on()
    module.shape(None)


def written(host: Host) -> int:
    """Bytes of layers that came to a host: space is reserved first, so holes do not count."""
    program = f"""
import glob, os
count = 0
for name in glob.glob("{STAGED}/.staging/*@*/layers/*"):
    handle, at = os.open(name, os.O_RDONLY), 0
    try:
        while True:
            start = os.lseek(handle, at, os.SEEK_DATA)
            at = os.lseek(handle, start, os.SEEK_HOLE)
            count += at - start
    except OSError:
        os.close(handle)
print(count)
"""
    said = host.exec("python3", "-c", program).stdout.strip()
    return int(said or 0)


def on_its_way(hosts: Fleet, name: str, share: float) -> subprocess.Popen[str]:
    """A run that has brought that much to this host."""
    run = hosts.start()
    host = hosts.cluster.lab.host(name)
    await_true(f"{share:.0%} on {name}", lambda: written(host) > share * SIZE, 240)
    return run


def finish(run: subprocess.Popen[str]) -> str:
    said, _ = run.communicate(timeout=400)
    return plain(said)


def whole(hosts: Fleet, made: Made) -> None:
    assert set(hosts.ids(made.id).values()) == {made.id}
    assert set(hosts.staged().values()) == {""}


def test_killed_pyinfra_stops_nothing_and_the_next_run_loads_what_came(
    hosts: Fleet, made: Made
) -> None:
    run = on_its_way(hosts, "node-c", 0.2)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert set(hosts.ids(made.id).values()) == {""}
    last = hosts.hosts[-1]
    came = f"ls {STAGED}/.store/*/layers/*.tar | wc -l"
    await_true("all layers on node-c", lambda: last.exec("sh", "-c", came).stdout == "3\n", 120)
    assert set(hosts.ids(made.id).values()) == {""}
    with hosts.counted() as moved:
        hosts.apply()
    whole(hosts, made)
    assert all(r + s < 0.02 * SIZE for r, s in moved.values()), moved


def test_killed_while_the_archive_is_sent_goes_on_where_it_was(hosts: Fleet, made: Made) -> None:
    first = hosts.hosts[0]
    sent = f"du -s -B1 {STAGED} | cut -f1"

    def count() -> int:
        return int(first.exec("sh", "-c", sent).stdout.strip() or 0)

    run = hosts.start()
    await_true("half on node-a", lambda: count() > 0.5 * SIZE, 240)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    with hosts.counted() as moved:
        hosts.apply()
    whole(hosts, made)
    assert moved["node-a"][0] < 0.55 * SIZE
    assert moved["node-c"][0] > 0.95 * SIZE


def test_a_receiver_that_loses_power_is_named_and_finished_by_the_next_run(
    hosts: Fleet, made: Made
) -> None:
    run = on_its_way(hosts, "node-b", 0.4)
    middle = hosts.cluster.lab.host("node-b")
    middle.power_cut()
    said = finish(run)
    assert run.returncode == 1, said
    assert "node-b] the image is not on this host:" in said
    middle.power_on()
    middle.shape("80mbit")
    await_true("Docker on node-b", lambda: middle.ssh("docker info").returncode == 0, 60)
    assert hosts.ids(made.id) == {"node-a": made.id, "node-b": "", "node-c": made.id}
    with hosts.counted() as moved:
        hosts.apply()
    whole(hosts, made)
    assert moved["node-b"][0] < 0.7 * SIZE, moved
    assert moved["node-c"][0] < 0.05 * SIZE, moved
