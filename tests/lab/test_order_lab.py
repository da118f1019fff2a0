"""Stop, start and restart of a whole cluster, in order; and the door while vLLM drains."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.conftest import deployed
from tests.lab.harness import BIN, ROOT, Cluster, await_true
from tests.lab.names import lab_name
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
NAME = lab_name("t-order")
UNITS = (("node-a", "vllm"), ("node-b", "ray-worker"), ("node-a", "ray-head"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with deployed(NAME, tmp_path_factory.mktemp("order")) as made:
        yield made


def run(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        [BIN / "vllm-cluster", *words, str(cluster.description)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def states(cluster: Cluster) -> list[str]:
    return [cluster.on(host, f"systemctl is-active {unit}", check=False).strip()
            for host, unit in UNITS]  # fmt: skip


def changed_us(cluster: Cluster, host: str, unit: str, what: str) -> int:
    """When the unit entered or left `active`, by the clock that all lab hosts share."""
    show = f"systemctl show --timestamp=us+utc -P {what}Timestamp {unit}"
    return int(cluster.on(host, f'date -d "$({show})" +%s%6N'))


def boot_again(cluster: Cluster) -> None:
    for host in ("node-a", "node-b"):
        cluster.lab.host(host).power_off()
    for host in ("node-a", "node-b"):
        cluster.lab.host(host).power_on()


def test_stop_ends_vllm_then_the_workers_then_the_head_and_start_goes_back(
    cluster: Cluster,
) -> None:
    assert states(cluster) == ["active"] * 3
    said = run(cluster, "stop")
    assert "a reboot starts it again" in said
    assert "active" not in states(cluster)
    ends = [changed_us(cluster, host, unit, "ActiveExit") for host, unit in UNITS]
    assert ends == sorted(ends)

    said = run(cluster, "start")
    at = f"http://{cluster.lab.host('node-a').address}:8000/v1"
    assert f"node-a: vLLM answers at {at}; its start took " in said
    assert states(cluster) == ["active"] * 3
    begins = [changed_us(cluster, host, unit, "ActiveEnter") for host, unit in UNITS]
    assert begins[0] == max(begins)
    assert begins[2] == min(begins)
    assert cluster.planned() == {}


def test_a_start_that_fails_shows_its_own_log_and_ends_with_why(cluster: Cluster) -> None:
    run(cluster, "stop")
    before = "a word of the life before"
    cluster.on("node-a", f"/usr/local/lib/vllm-cluster/attempt say vllm '{before}'")
    assert before in cluster.on("node-a", "journalctl --unit=vllm --output=cat")
    model = make_plan(load(cluster.description).description).model_path
    cluster.on("node-a", f"mv {model} {model}.away")
    try:
        done = subprocess.run(
            [BIN / "vllm-cluster", "start", str(cluster.description)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        cluster.on("node-a", f"mv {model}.away {model}")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert before not in said
    why = "failed on node-a: vllm.service: the model on this host is not the plan's"
    assert [line for line in done.stderr.splitlines() if line.startswith(why)], said
    run(cluster, "start")
    assert states(cluster) == ["active"] * 3


def test_restart_restarts_each_and_a_second_stop_changes_nothing(cluster: Cluster) -> None:
    before = [changed_us(cluster, host, unit, "ActiveEnter") for host, unit in UNITS]
    run(cluster, "restart")
    after = [changed_us(cluster, host, unit, "ActiveEnter") for host, unit in UNITS]
    assert all(new > old for new, old in zip(after, before, strict=True))
    run(cluster, "stop")
    totals = cluster.apply("deploys/stop.py")["totals"]
    assert totals["success"] == 0
    run(cluster, "start")


def test_a_stopped_cluster_comes_back_with_a_reboot_unless_kept_down(cluster: Cluster) -> None:
    run(cluster, "stop")
    boot_again(cluster)
    await_true("all runs again", lambda: states(cluster) == ["active"] * 3, 120)

    said = run(cluster, "stop", "--keep-down")
    assert "a reboot does not start it" in said
    boot_again(cluster)
    await_true(
        "the host is up",
        lambda: "running" in cluster.on("node-a", "systemctl is-system-running", check=False),
        120,
    )
    assert states(cluster) == ["inactive"] * 3

    run(cluster, "start")
    assert states(cluster) == ["active"] * 3
    assert cluster.planned() == {}


LISTEN = "perl -MIO::Socket::INET -e 'my $l = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die; while (my $c = $l->accept) { push @c, $c; print $c qq(hello\\n) }'"  # noqa: E501


def test_the_door_refuses_new_connections_and_leaves_open_ones_alone(cluster: Cluster) -> None:
    script = "/usr/local/lib/vllm-cluster/door"
    host = cluster.lab.host("node-a")
    cluster.on("node-a", f"systemd-run --quiet --unit=listener {LISTEN}")
    dial = f"exec 3<>/dev/tcp/{host.address}/8000 && read -t 5 -r word <&3 && echo $word"
    await_true("it listens", lambda: "hello" in cluster.lab.outside("bash", "-c", dial).stdout, 20)
    talk = f"""
      exec 3<>/dev/tcp/{host.address}/8000; read -r -t 5 first <&3; echo "$first"
      for i in $(seq 60); do printf 'x\\n' >&3 || exit 1; sleep 0.2; done; echo open
    """
    client = subprocess.Popen(
        cluster.lab.outside_argv(["bash", "-c", talk]), stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "hello\n"
    cluster.on("node-a", f"{script} close 8000 && {script} close 8000")
    refused = cluster.lab.outside("bash", "-c", dial)
    assert "Connection refused" in refused.stderr
    assert client.communicate(timeout=60)[0] == "open\n"
    cluster.on("node-a", f"{script} open && {script} open")
    assert "hello" in cluster.lab.outside("bash", "-c", dial).stdout
    cluster.on("node-a", "systemctl stop listener")
