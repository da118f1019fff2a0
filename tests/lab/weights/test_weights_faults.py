"""A fan-out that is hurt: processes killed, cables pulled, bytes flipped. Nothing half is visible.

Hosts are network namespaces with shaped links, agents are real processes. Needs root.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.weights.fleet import Fleet, make_model, wait_until
from tests.lab.weights.helpers import (
    HOSTS,
    QUICK_LIMITS,
    SHARD_BYTES,
    SHARDS,
    everybody_has_it,
    listening,
    nothing_visible,
    reach,
    same,
    written_bytes,
)

pytestmark = pytest.mark.lab


def test_without_a_fault_the_first_host_sends_the_model_once_and_nobody_listens_after(
    fleet: Fleet, source: Path
) -> None:
    before = fleet.net.sent_bytes(0)
    started = fleet.start_all([1, 2, 3])
    assert {n: process.wait(60) for n, process in started.items()} == dict.fromkeys(started, 0)
    everybody_has_it(fleet, source, [1, 2, 3])
    sent = fleet.net.sent_bytes(0) - before
    # 1.046: the headers of Ethernet, IP and TCP at an MTU of 1500
    assert sent < 1.046 * 1.05 * SHARDS * SHARD_BYTES
    assert [listening(fleet, n) for n in range(HOSTS)] == [""] * HOSTS


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_killed_receiver_goes_on_where_it_was(fleet: Fleet, source: Path, share: float) -> None:
    started = fleet.start_all([1, 2, 3])
    reach(fleet, 2, share)
    started[2].kill()
    started[2].wait()
    written = written_bytes(fleet.root(2) / ".staging" / fleet.key())
    nothing_visible(fleet, 2)
    again = fleet.start(2, "pull", fleet.jobs([1, 2, 3])[fleet.name(2)])
    assert again.wait(60) == 0, fleet.log(2)
    assert [started[n].wait(60) for n in (0, 1, 3)] == [0, 0, 0]
    everybody_has_it(fleet, source, [1, 2, 3])
    state = fleet.state(2)
    refetched = state["fetched_bytes"] + written - state["total_bytes"]
    assert refetched < 0.02 * state["total_bytes"]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_killed_sender_is_waited_for(fleet: Fleet, source: Path, share: float) -> None:
    started = fleet.start_all([1, 2])
    reach(fleet, 1, share)
    started[0].kill()
    started[0].wait()
    nothing_visible(fleet, 2)
    fleet.start(0, "serve", fleet.jobs([1, 2])[fleet.name(0)])
    assert [started[n].wait(60) for n in (1, 2)] == [0, 0], fleet.log(1)
    everybody_has_it(fleet, source, [1, 2])
    assert fleet.state(1)["fetched_bytes"] < 1.02 * fleet.state(1)["total_bytes"]


def test_a_host_lost_in_the_middle_is_passed_by_named_and_catches_up_later(
    fleet: Fleet, source: Path
) -> None:
    started = fleet.start_all([1, 2, 3])
    reach(fleet, 2, 0.3)
    started[2].kill()
    started[2].wait()
    assert [started[n].wait(60) for n in (1, 3, 0)] == [0, 0, 0], fleet.log(3)
    everybody_has_it(fleet, source, [1, 3])
    nothing_visible(fleet, 2)
    assert list(fleet.state(3)["passed_by"]) == ["node-2"]
    assert fleet.state(3)["not_reached"] == ["node-2"]
    # later, from others than the first host
    jobs = fleet.jobs([2], holders=[3, 1])
    parts = [fleet.start(n, "serve", jobs[fleet.name(n)]) for n in (3, 1)]
    parts.append(fleet.start(2, "pull", jobs[fleet.name(2)]))
    assert [part.wait(60) for part in parts] == [0, 0, 0], fleet.log(2)
    everybody_has_it(fleet, source, [2])
    assert fleet.state(2)["fetched_bytes"] < 0.75 * fleet.state(2)["total_bytes"]


def test_a_link_cut_for_a_while_is_got_around_and_returned_to(fleet: Fleet, source: Path) -> None:
    """The bake-off's trap: who falls back to the first host and stays there loads it for good."""
    fleet.net.shape(0, 30)  # slow enough to see the return
    started = fleet.start_all([1, 2])
    reach(fleet, 2, 0.1)
    fleet.net.cut(1)
    wait_until(lambda: fleet.state(2).get("from") == "node-0", 30, "the way around host 1")
    fleet.net.mend(1)
    wait_until(lambda: fleet.state(2).get("from") == "node-1", 30, "the way back to host 1")
    assert [started[n].wait(60) for n in (0, 1, 2)] == [0, 0, 0], fleet.log(2)
    everybody_has_it(fleet, source, [1, 2])
    assert set(fleet.state(2)["from_peers"]) == {"node-0", "node-1"}


def test_the_receivers_own_link_cut_for_20_s_only_costs_the_time(
    fleet: Fleet, source: Path
) -> None:
    fleet.options["linger_s"] = 60.0
    started = fleet.start_all([1, 2])
    reach(fleet, 2, 0.3)
    fleet.net.cut(2)
    with pytest.raises(subprocess.TimeoutExpired):
        started[2].wait(20)
    nothing_visible(fleet, 2)
    fleet.net.mend(2)
    again = started[2].wait(60)
    assert again == 0, fleet.log(2)
    everybody_has_it(fleet, source, [1, 2])
    assert fleet.state(2)["fetched_bytes"] < 1.02 * fleet.state(2)["total_bytes"]


def test_a_link_cut_for_good_ends_in_a_message_and_the_others_finish(
    fleet: Fleet, source: Path
) -> None:
    fleet.options["limits"] = {**QUICK_LIMITS, "give_up_s": 12.0}
    started = fleet.start_all([1, 2, 3])
    reach(fleet, 2, 0.3)
    fleet.net.cut(2)
    assert [started[n].wait(60) for n in (1, 3, 0)] == [0, 0, 0], fleet.log(3)
    assert started[2].wait(60) == 1
    everybody_has_it(fleet, source, [1, 3])
    nothing_visible(fleet, 2)
    message = fleet.log(2)
    assert "node-2: model-000" in message
    assert "no chunk for 12 s" in message
    assert "node-1 (10.99.0.2)" in message


def test_a_slow_host_is_passed_by_and_named(fleet: Fleet, source: Path) -> None:
    for number in range(HOSTS):
        fleet.net.shape(number, 20)
    fleet.net.shape(1, 2)
    fleet.options["silence_s"] = 8.0  # it is slow, not silent
    fleet.link_mbit = 20
    fleet.start_all([1, 2, 3])
    wait_until(lambda: fleet.placed(2).exists() and fleet.placed(3).exists(), 60, "hosts 2 and 3")
    assert "slow" in fleet.state(2)["passed_by"]["node-1"]
    assert fleet.state(3)["passed_by"] == {}
    everybody_has_it(fleet, source, [2, 3])
    assert not fleet.placed(1).exists(), "or host 1 was not slow"


def test_the_same_command_started_twice_runs_once(fleet: Fleet, source: Path) -> None:
    started = fleet.start_all([1])
    reach(fleet, 1, 0.1)
    second = fleet.start(1, "pull", fleet.jobs([1])[fleet.name(1)])
    assert second.wait(30) == 3
    assert f"already being worked on by process {started[1].pid}" in fleet.log(1)
    assert [process.wait(60) for process in started.values()] == [0, 0]
    everybody_has_it(fleet, source, [1])


def test_a_stopped_transfer_says_so_and_goes_on_later(fleet: Fleet, source: Path) -> None:
    started = fleet.start_all([1])
    reach(fleet, 1, 0.3)
    assert fleet.call(1, "stop", "--key", fleet.key()).returncode == 0
    assert started[1].wait(30) == 1
    assert fleet.state(1)["phase"] == "stopped"
    nothing_visible(fleet, 1)
    assert started[0].wait(30) == 0, "the first host does not wait for it"
    again = fleet.start_all([1])
    assert [process.wait(60) for process in again.values()] == [0, 0]
    everybody_has_it(fleet, source, [1])


def test_two_models_at_once(fleet: Fleet, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_model(other, SHARDS, SHARD_BYTES // 2, seed=2)
    fleet.obtain(other, "r2")
    one = fleet.start_all([1, 2])
    fleet.port += 1
    two = fleet.start_all([1, 2], revision="r2")
    for started in (one, two):
        assert [process.wait(60) for process in started.values()] == [0, 0, 0], fleet.log(1)
    for number in (1, 2):
        assert same(source, fleet.placed(number))
        assert same(other, fleet.placed(number, "r2"))


def test_a_second_run_sends_nothing(fleet: Fleet) -> None:
    first = fleet.start_all([1, 2, 3])
    assert [process.wait(60) for process in first.values()] == [0] * HOSTS
    before = [fleet.net.sent_bytes(number) for number in range(HOSTS)]
    again = fleet.start_all([1, 2, 3])
    assert [process.wait(60) for process in again.values()] == [0] * HOSTS
    sent = [fleet.net.sent_bytes(n) - old for n, old in enumerate(before)]
    assert max(sent) < 100_000, "a few words each"
    assert [listening(fleet, n) for n in range(HOSTS)] == [""] * HOSTS


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_closing_the_connection_that_started_it_does_not_stop_a_detached_transfer(
    fleet: Fleet, source: Path, share: float
) -> None:
    fleet.options["limit_mbit"] = 10.0
    jobs = fleet.jobs([1])
    # As an SSH session does it: in a session of its own, hung up when the connection goes.
    serve = subprocess.run(
        fleet.command(0, "serve", "--job", "-", "--detach"),
        input=jobs[fleet.name(0)], text=True, capture_output=True, check=True,
        start_new_session=True,
    )  # fmt: skip
    assert '"attached": false' in serve.stdout
    starter = subprocess.Popen(
        fleet.command(1, "pull", "--job", "-", "--detach"),
        stdin=subprocess.PIPE, text=True, start_new_session=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert starter.stdin is not None
    starter.stdin.write(jobs[fleet.name(1)])
    starter.stdin.close()
    reach(fleet, 1, share)
    with suppress(ProcessLookupError):  # it may have gone by itself, the agent stays
        os.killpg(starter.pid, signal.SIGHUP)
    starter.wait(10)
    again = fleet.call(1, "pull", "--job", "-", "--detach", input=jobs[fleet.name(1)])
    assert '"attached": true' in again.stdout
    followed = fleet.call(1, "follow", "--key", fleet.key())
    assert followed.returncode == 0, followed.stdout
    everybody_has_it(fleet, source, [1])
    leftover = list((fleet.root(1) / ".jobs").glob("*.job"))
    assert leftover == [], "the job with its token stays behind"
