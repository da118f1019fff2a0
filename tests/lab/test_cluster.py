"""Two bare hosts become a cluster that answers, and stay one."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.harness import ROOT, Cluster, await_true, describe, remote_commands
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
NAME = lab_name("t-cluster")
HOSTS = ("node-a", "node-b")
COMMANDS_OF_AN_EMPTY_RUN = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster deployed once onto bare hosts."""
    lab = Lab.up(2, name=NAME)
    try:
        made = describe(lab, tmp_path_factory.mktemp("inventory"))
        made.apply()
        yield made
    finally:
        lab.down()


@pytest.fixture(scope="module")
def reference() -> Any:
    """What one vLLM process answers on the same model."""
    return json.loads((ROOT / ".cache" / "model" / "reference.json").read_text())


def assert_answers_like_one_process(cluster: Cluster, reference: Any) -> None:
    choice = cluster.complete(reference["prompt"], len(reference["token_ids"]))
    assert choice["token_ids"] == reference["token_ids"]


def test_the_cluster_answers_as_one_process_does(cluster: Cluster, reference: Any) -> None:
    assert len(set(reference["token_ids"])) > 1, "one token over and over proves little"
    assert_answers_like_one_process(cluster, reference)


def test_vllms_own_log_shows_the_ranks_where_the_plan_says(cluster: Cluster) -> None:
    plan = make_plan(load(cluster.description).description)
    planned = {(rank.rank, rank.pp_rank, rank.tp_rank, rank.host) for rank in plan.ranks}
    log = cluster.on("node-a", "journalctl --unit=vllm --output=cat --no-pager")
    found = set()
    for line in log.splitlines():
        rank = re.search(r"rank (\d+) in world size 2 is .*PP rank (\d+),.* TP rank (\d+)", line)
        if rank:
            address = re.search(r"pid=\d+, ip=([\d.]+)", line)
            ip = address[1] if address else plan.hosts[plan.head].address
            host = next(host.name for host in plan.hosts.values() if host.address == ip)
            found.add((int(rank[1]), int(rank[2]), int(rank[3]), host))
    assert found == planned


def test_a_second_run_and_a_dry_run_change_nothing(cluster: Cluster) -> None:
    totals = cluster.apply()["totals"]
    assert totals["success"] == 0, totals
    assert totals["error"] == 0, totals
    assert cluster.planned() == {}


def test_an_empty_run_takes_few_remote_commands_and_shows_no_secret(cluster: Cluster) -> None:
    done = cluster.pyinfra("-y", "-vv")
    counts = remote_commands(done.stdout + done.stderr)
    assert set(counts) == set(HOSTS)
    assert max(counts.values()) <= COMMANDS_OF_AN_EMPTY_RUN, counts


DRIFT = [
    ("node-b", "/etc/hosts", "sed -i s/10.77.0.11/10.9.9.9/ /etc/hosts"),
    ("node-a", "/etc/vllm-cluster/firewall.nft", "sed -i s/8000/8001/ {}"),
    ("node-a", "/etc/systemd/system/vllm.service", "sed -i s/RestartSec=500ms/RestartSec=6/ {}"),
    ("node-b", "/etc/systemd/system/ray-worker.service", "echo '# mine' >> {}"),
    ("node-b", "/etc/vllm-cluster/cluster.env", "echo NCCL_DEBUG=TRACE >> {}"),
    ("node-a", "/usr/local/lib/vllm-cluster/probe.py", "chmod 644 {}"),
    ("node-b", "/usr/local/lib/vllm-cluster/wait-for-head", "rm {}"),
    ("node-a", "/etc/vllm-cluster/secrets/api-key", "chmod 644 {}"),
    ("node-b", "/etc/vllm-cluster/secrets/ray-token", "echo other > {}"),
]


@pytest.mark.parametrize(("host", "path", "command"), DRIFT, ids=[path for _, path, _ in DRIFT])
def test_an_edited_file_is_named_by_a_dry_run_and_mended_by_the_next(
    cluster: Cluster, host: str, path: str, command: str
) -> None:
    before = cluster.on(host, f"stat -c '%a %U' {path}; sha256sum {path}")
    cluster.on(host, command.format(path))
    assert cluster.on(host, f"stat -c '%a %U' {path}; sha256sum {path}", check=False) != before

    dry = cluster.pyinfra("--dry", "--diff")
    named = set(re.findall(r"\[([^\]]+)\] (/\S+): ", dry.stdout + dry.stderr))
    assert named == {(host, path)}

    cluster.apply()
    assert cluster.on(host, f"stat -c '%a %U' {path}; sha256sum {path}") == before
    assert cluster.planned() == {}


def test_a_firewall_table_that_somebody_flushed_is_loaded_again(cluster: Cluster) -> None:
    cluster.on("node-b", "nft delete table inet vllm_cluster")
    assert list(cluster.planned().values()) == [["node-b"]]
    cluster.apply()
    assert "policy drop" in cluster.on("node-b", "nft list table inet vllm_cluster")


def listening(cluster: Cluster, host: str) -> set[int]:
    """TCP ports of `host` that listen on more than loopback."""
    lines = cluster.on(host, "ss -Hltn").splitlines()
    ends = [line.split()[3].rsplit(":", 1) for line in lines]
    loopback = ("127.", "[::ffff:127.", "[::1]")
    return {int(port) for address, port in ends if not address.startswith(loopback)}


def answering(scan: subprocess.CompletedProcess[str]) -> set[int]:
    assert scan.returncode == 0, scan.stderr
    return {int(port) for port in scan.stdout.split()}


SCAN = (
    'for p in {}; do timeout 1 bash -c "exec 3<>/dev/tcp/{}/$p" 2>/dev/null && echo $p; done; true'
)


@pytest.mark.parametrize(("host", "peer"), [("node-a", "node-b"), ("node-b", "node-a")])
def test_others_reach_ssh_and_the_api_alone_and_peers_reach_everything(
    cluster: Cluster, host: str, peer: str
) -> None:
    ports = listening(cluster, host)
    address = cluster.lab.host(host).address
    assert {22, 6380, 6381, 6382} <= ports
    assert sum(port >= 32768 for port in ports) > 3, "no ephemeral port of vLLM's workers"
    scan = SCAN.format(" ".join(map(str, sorted(ports))), address)
    outside = answering(cluster.lab.outside("bash", "-c", scan))
    assert outside == ({22, 8000} if host == "node-a" else {22})
    # A port of vLLM's may close between the listing and the scan, none of Ray's.
    inside = answering(cluster.lab.host(peer).ssh(scan))
    still = listening(cluster, host) & ports
    assert inside >= still


@pytest.mark.parametrize("host", HOSTS)
def test_the_declared_shm_is_what_the_containers_see(cluster: Cluster, host: str) -> None:
    for container in cluster.on(host, "docker ps --format '{{.Names}}'").split():
        size = cluster.on(host, f"docker exec {container} df --output=size -B1 /dev/shm | tail -n1")
        assert int(size) == 2**30, container


@pytest.mark.parametrize("container", [("node-a", "vllm"), ("node-b", "ray-worker")])
def test_ranks_of_one_host_can_make_their_sockets(
    cluster: Cluster, container: tuple[str, str]
) -> None:
    """With tensor parallelism they do; vLLM copies its VLLM_RPC_BASE_PATH to every host."""
    host, name = container
    path = cluster.on("node-a", "docker exec vllm printenv VLLM_RPC_BASE_PATH").strip()
    bind = f"import socket; socket.socket(socket.AF_UNIX).bind('{path}/of-this-test')"
    cluster.on(host, f'docker exec {name} python3 -c "{bind}" && rm {path}/of-this-test')


def test_no_secret_shows_anywhere(cluster: Cluster) -> None:
    seen = ""
    for host in HOSTS:
        seen += cluster.on(
            host, "docker inspect $(docker ps -q); docker image inspect $(docker images -q)"
        )
        seen += cluster.on(
            host, "systemctl show ray-head ray-worker vllm; ps auxww; ls -lR /etc/vllm-cluster"
        )
        seen += cluster.on(
            host, "cat /etc/systemd/system/*.service /etc/vllm-cluster/*.*; journalctl --no-pager"
        )
        seen += cluster.on(
            host, "find /tmp /var/tmp -type f -exec cat {} +; cat /root/.bash_history", check=False
        )
        for path in cluster.on(host, "ls -d /etc/vllm-cluster/secrets/*").split():
            assert cluster.on(host, f"stat -c '%a %U %G' {path}").strip() == "600 root root"
        assert cluster.on(host, "stat -c '%a %U' /etc/vllm-cluster/secrets").strip() == "700 root"
    # A run that writes the secrets anew says the most.
    cluster.on(
        "node-a",
        "rm /etc/vllm-cluster/secrets/api-key; echo x > /etc/vllm-cluster/secrets/ray-token",
    )
    for options in (["--dry", "--diff"], ["--dry", "-vvv"], ["-y", "-vvv"]):
        done = cluster.pyinfra(*options)
        seen += done.stdout + done.stderr
    seen += json.dumps(cluster.pyinfra("--json", "--dry").stdout)
    assert "ray-token" in seen
    for name, value in cluster.secrets.items():
        assert value not in seen, f"{name} is shown"


def test_a_request_without_the_key_is_turned_away(cluster: Cluster) -> None:
    url = f"http://{cluster.lab.host('node-a').address}:8000/v1/models"
    status = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", url]
    assert cluster.lab.outside(*status).stdout == "401"


def test_units_are_supervised_by_systemd_alone(cluster: Cluster) -> None:
    for host, unit in [("node-a", "ray-head"), ("node-a", "vllm"), ("node-b", "ray-worker")]:
        shown = dict(
            line.split("=", 1)
            for line in cluster.on(host, f"systemctl show {unit}").splitlines()
            if "=" in line
        )
        assert shown["Restart"] == "always"
        assert shown["ActiveState"] == "active"
        assert shown["UnitFileState"] == "enabled"
        assert shown["StartLimitBurst"] == "10"
        policy = cluster.on(
            host, f"docker inspect -f '{{{{.HostConfig.RestartPolicy.Name}}}}' {unit}"
        )
        assert policy.strip() == "no"


def test_after_a_power_cut_of_both_hosts_it_answers_by_itself(
    cluster: Cluster, reference: Any
) -> None:
    for host in HOSTS:
        cluster.lab.host(host).power_off()
    assert cluster.api("/v1/models", timeout_s=2) is None
    for host in HOSTS:
        cluster.lab.host(host).power_on()
    await_true(
        "a completion after the boot",
        lambda: cluster.complete(reference["prompt"], 1) is not None,
        timeout_s=600,
    )
    assert_answers_like_one_process(cluster, reference)
    assert cluster.planned() == {}


def test_a_broken_description_ends_before_any_connection(cluster: Cluster, tmp_path: Path) -> None:
    broken = describe(cluster.lab, tmp_path, lambda text: text.replace("10.77.0.12", "127.0.0.1"))
    done = broken.pyinfra("-y")
    assert done.returncode == 2
    assert f"{broken.description}:" in done.stderr
    assert "hosts.node-b.address: found '127.0.0.1'" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "Connecting" not in done.stdout + done.stderr
