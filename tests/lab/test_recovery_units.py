"""What the units do when something is not there, fails again and again, or was edited."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.lab.conftest import deployed
from tests.lab.harness import Cluster, await_true
from tests.lab.names import lab_name

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
# Seconds on an idle machine; others may work beside.
LIMIT_S = 240.0
HEAD, WORKER = ("node-a", "ray-head"), ("node-b", "ray-worker")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with deployed(lab_name("t-recover"), tmp_path_factory.mktemp("recover")) as made:
        yield made


@pytest.fixture(autouse=True)
def settled(cluster: Cluster) -> None:
    """As after a quiet quarter of an hour."""
    for host, units in (("node-a", "ray-head vllm"), ("node-b", "ray-worker")):
        for unit in units.split():
            cluster.on(host, f"/usr/local/lib/vllm-cluster/attempt held {unit}")


def shown(cluster: Cluster, host: str, unit: str, name: str) -> str:
    return cluster.on(host, f"systemctl show --property={name} --value {unit}").strip()


def runs(cluster: Cluster, host: str, unit: str) -> bool:
    ask = f"docker inspect --format '{{{{.State.Running}}}}' {unit}"
    return cluster.on(host, ask, check=False).strip() == "true"


def starts(cluster: Cluster, host: str, unit: str) -> int:
    return int(cluster.on(host, f"cat /run/vllm-cluster/units/{unit}.starts || echo 0"))


def test_a_unit_waits_for_a_stopped_docker_and_leaves_it_stopped(cluster: Cluster) -> None:
    host, unit = WORKER
    cluster.on(host, "systemctl stop docker.service")  # its socket stays, and would start it
    await_true(
        "the unit waits",
        lambda: "docker.service is inactive" in cluster.on(host, f"journalctl -u {unit} -n 20"),
        timeout_s=LIMIT_S,
    )
    before = starts(cluster, host, unit)
    time.sleep(15)  # what would be seven starts at two seconds each
    assert starts(cluster, host, unit) == before <= 2
    assert shown(cluster, host, "docker.service", "ActiveState") == "inactive"
    cluster.on(host, "systemctl start docker.service")
    await_true("the worker runs", lambda: runs(cluster, host, unit), timeout_s=LIMIT_S)


def test_a_stop_while_it_waits_is_no_failure(cluster: Cluster) -> None:
    host, unit = WORKER
    cluster.on(host, "systemctl stop docker.service")
    await_true(
        "the unit waits",
        lambda: shown(cluster, host, unit, "SubState") == "start-pre",
        timeout_s=LIMIT_S,
    )
    cluster.on(host, f"systemctl stop {unit}")
    assert shown(cluster, host, unit, "ActiveState") == "inactive"
    assert shown(cluster, host, unit, "Result") == "success"
    cluster.on(host, f"systemctl start docker.service && systemctl start --no-block {unit}")
    await_true("the worker runs", lambda: runs(cluster, host, unit), timeout_s=LIMIT_S)
    assert "gave up" not in cluster.on(host, f"journalctl --unit={unit}")


def test_a_stop_while_it_pauses_between_starts_ends_at_once(cluster: Cluster) -> None:
    """systemd goes on to what comes after the pause, which waits for the head."""
    host, unit = WORKER
    cluster.on("node-a", "iptables -I INPUT -p tcp --dport 6379 -s 10.77.0.12 -j REJECT")
    cluster.on(host, f"echo 4 > /run/vllm-cluster/units/{unit}.starts; docker kill {unit}")
    await_true(
        "the unit pauses",
        lambda: "pausing 20 s" in cluster.on(host, f"journalctl -u {unit} -n 5"),
        timeout_s=LIMIT_S,
    )
    began = time.monotonic()
    cluster.on(host, f"systemctl stop {unit}")
    cluster.on("node-a", "iptables -D INPUT -p tcp --dport 6379 -s 10.77.0.12 -j REJECT")
    assert time.monotonic() - began < 30, "the time-out of a stop is what ended it"
    assert shown(cluster, host, unit, "ActiveState") == "inactive"
    assert shown(cluster, host, unit, "Result") == "success"
    cluster.on(host, f"systemctl start --no-block {unit}")
    await_true("the worker runs", lambda: runs(cluster, host, unit), timeout_s=LIMIT_S)


def test_a_docker_that_failed_is_started_again(cluster: Cluster) -> None:
    host, unit = WORKER
    cluster.on(
        host,
        "mkdir -p /run/systemd/system/docker.service.d && "
        "printf '[Service]\\nRestart=no\\n' > /run/systemd/system/docker.service.d/no.conf && "
        "systemctl daemon-reload && systemctl kill --signal=SIGKILL docker.service",
    )
    await_true(
        "Docker is there again",
        lambda: (
            shown(cluster, host, "docker.service", "ActiveState") == "active"
            and runs(cluster, host, unit)
        ),
        timeout_s=LIMIT_S,
    )
    cluster.on(host, "rm -r /run/systemd/system/docker.service.d && systemctl daemon-reload")
    assert starts(cluster, host, unit) <= 2


def test_pauses_grow_and_the_end_says_why(cluster: Cluster) -> None:
    host, unit = HEAD
    drop_in = f"/run/systemd/system/{unit}.service.d"
    cluster.on(
        host,
        f"mkdir -p {drop_in} && printf '[Unit]\\nStartLimitBurst=4\\n' > {drop_in}/limit.conf && "
        "systemctl daemon-reload && mv /var/lib/vllm-cluster/compile-cache /root/aside && "
        f"docker kill {unit}",
    )
    # Not its state alone: between two starts a unit is failed for a moment too.
    await_true(
        "the unit gives up",
        lambda: (
            "gave up after" in cluster.on(host, f"systemctl status {unit}", check=False)
            and shown(cluster, host, unit, "ActiveState") == "failed"
        ),
        timeout_s=LIMIT_S,
    )
    status = cluster.on(host, f"systemctl status {unit}", check=False)
    assert "gave up after 4 starts" in status, status
    assert "bind source path does not exist: /var/lib/vllm-cluster/compile-cache" in status
    log = cluster.on(host, f"journalctl -u {unit} --output=cat")
    assert "pausing 5 s before it" in log
    assert "pausing 10 s before it" in log

    assert shown(cluster, host, "vllm", "ActiveState") == "activating", "it waits for its head"
    assert starts(cluster, host, "vllm") <= 1, "a start that only waited for its head is none"
    restarts = shown(cluster, host, unit, "NRestarts")
    time.sleep(15)  # RestartSec= and the watchdog's pause, several times over
    assert shown(cluster, host, unit, "ActiveState") == "failed"
    assert shown(cluster, host, unit, "NRestarts") == restarts

    cluster.on(host, f"rm -r {drop_in}; mv /root/aside /var/lib/vllm-cluster/compile-cache")
    cluster.apply()
    assert runs(cluster, host, unit)
    assert starts(cluster, host, unit) <= 2, "a deploy begins the count anew"


@pytest.mark.parametrize(
    ("host", "unit", "file", "edit"),
    [
        ("node-b", "ray-worker", "/etc/vllm-cluster/cluster.env", "echo NCCL_DEBUG=TRACE >> {}"),
        ("node-a", "vllm", "/etc/systemd/system/vllm.service",
         "sed -i s/--port=8000/--port=8001/ {} && systemctl daemon-reload"),
    ],
)  # fmt: skip
def test_what_was_started_from_an_edited_file_is_restarted_by_the_next_deploy(
    cluster: Cluster, host: str, unit: str, file: str, edit: str
) -> None:
    def edited() -> bool:
        told = cluster.on(host, f"docker inspect {unit}", check=False)
        return "NCCL_DEBUG=TRACE" in told or "--port=8001" in told

    cluster.on(host, edit.format(file))
    cluster.on(host, f"systemctl restart {unit}")
    await_true("it runs what was edited", edited, timeout_s=LIMIT_S)
    cluster.apply()
    await_true(
        "it runs what is described",
        lambda: runs(cluster, host, unit) and not edited(),
        timeout_s=LIMIT_S,
    )
    assert cluster.planned() == {}


def test_an_edited_file_that_nothing_was_started_from_restarts_nothing(cluster: Cluster) -> None:
    began = shown(cluster, "node-a", "vllm", "ExecMainStartTimestamp")
    cluster.on("node-a", "echo NCCL_DEBUG=TRACE >> /etc/vllm-cluster/cluster.env")
    cluster.apply()
    assert "NCCL_DEBUG" not in cluster.on("node-a", "cat /etc/vllm-cluster/cluster.env")
    assert shown(cluster, "node-a", "vllm", "ExecMainStartTimestamp") == began


def test_vllm_that_fails_twice_gets_a_ray_session_afresh(cluster: Cluster) -> None:
    def session() -> str:
        return cluster.on("node-a", "docker inspect -f '{{.Id}}' ray-head", check=False).strip()

    first = session()
    for _ in range(2):
        before = starts(cluster, "node-a", "vllm")
        cluster.on("node-a", "docker kill vllm")
        await_true("it starts", lambda b=before: starts(cluster, "node-a", "vllm") > b, LIMIT_S)  # type: ignore[misc]
        await_true("it runs", lambda: runs(cluster, "node-a", "vllm"), LIMIT_S)
        if starts(cluster, "node-a", "vllm") < 3:
            assert session() == first
    cluster.on("node-a", "docker kill vllm")
    await_true("another session", lambda: session() not in {"", first}, timeout_s=LIMIT_S)
    await_true("vLLM runs", lambda: runs(cluster, "node-a", "vllm"), timeout_s=LIMIT_S)
