"""Two neglected hosts with GPUs, from what somebody left there to the end of deploys/cluster.py.

Each refusal names its host and the fix; the fix is applied and the run repeated, as a person
does, until nothing is refused. What was there before is there at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.lab.bare import Bare, bare, listening, ok, scan
from tests.lab.harness import await_true, remote_commands
from tests.lab.test_hosts_gpu import CARD, MODULE, URI, VERSIONS, cards, installed_by_hand
from tests.lab.vendor.repository import Repository, build
from vllm_cluster.lab.host import Host

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
PORTS = [8000, 9100, 9999, 111, 20000, 40123]
COMMANDS_OF_AN_EMPTY_RUN = 40

# Of the user: lets in SSH, one port from everywhere and one from the cluster, drops the rest.
RULES = """flush ruleset
table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		ct state established,related accept
		tcp dport { 22, 9999 } accept
		ip saddr 10.77.0.0/24 tcp dport 6379 accept comment "mine"
		ip protocol icmp accept
	}
}
"""
LET_IN = "ip saddr 10.77.0.0/24 accept"
DAEMON = {"dns": ["10.77.0.1"], "labels": ["mine=yes"], "default-runtime": "kata"}
SYSCTL = "net.ipv4.ip_local_reserved_ports = 8001\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return build(tmp_path_factory.mktemp("vendor"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> Iterator[Bare]:
    with bare("t-whole", tmp_path_factory.mktemp("whole")) as made:
        for host in made.lab.hosts:
            shutil.copytree(repository.folder, host.place.root / "srv" / "vendor")
            cards(host, CARD)
        describe(made, repository)
        yield made


def describe(hosts: Bare, repository: Repository, **driver: object) -> None:
    hosts.edit(
        gpu={"kind": "nvidia", "model": "H100", "memory": "80GiB"},
        driver={"source": repository.source(URI), **driver},
        toolkit={"source": repository.source(URI)},
        network={"api_from": ["10.77.0.200/32"]},
        clock={"service": "auto"},
    )


def write(host: Host, path: str, text: str) -> None:
    done = host.ssh(f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)
    assert done.returncode == 0, done.stderr


def neglected_head(host: Host) -> None:
    """ufw, two ports of sshd, a wrong name, an old driver with MIG, a runtime that is not there."""
    ok(host, "echo 'Port 22\nPort 2222' > /etc/ssh/sshd_config.d/ports.conf; systemctl restart ssh")
    ok(host, "ufw allow 22/tcp; ufw allow 9100/tcp comment 'my exporter'; ufw --force enable")
    ok(host, "echo '10.9.9.9 printer # third floor\n10.77.0.99 node-b' >> /etc/hosts")
    installed_by_hand(host, "580.95.05", "1.17.8-1")
    ok(host, "touch /etc/standin/mig")
    ok(host, "mount -o remount,size=16m /dev/shm")
    write(host, "/etc/docker/daemon.json", json.dumps(DAEMON))


def neglected_worker(host: Host) -> None:
    """Rules of the user's, an upgrade under the loaded driver, a flag of dockerd, another image."""
    write(host, "/etc/nftables.conf", RULES)
    ok(host, "systemctl enable --quiet --now nftables")
    installed_by_hand(host, "580.95.05")
    installed_by_hand(host, "580.105.08")
    ok(host, "dpkg --unpack /srv/vendor/nvidia-fabricmanager_580.105.08-1_all.deb")
    ok(host, "touch /var/lib/dpkg/lock-frontend /var/lib/apt/lists/lock")
    ok(host, "tar -C / -c bin/true 2>/dev/null | docker import - vllm-cluster/standin:1")
    ok(host, "docker create --name web vllm-cluster/standin:1 /bin/true")
    ok(host, "echo 'DOCKER_OPTS=\"--label other=yes\"' > /etc/default/docker")
    ok(host, "systemctl restart docker")
    write(host, "/etc/docker/daemon.json", '{"labels": ["mine=yes"]}')
    write(host, "/etc/sysctl.d/50-mine.conf", SYSCTL)
    ok(host, "sysctl -q -p /etc/sysctl.d/50-mine.conf")
    write(host, "/usr/local/bin/date", "#!/bin/sh\nexec /usr/bin/date -d '+90 seconds' \"$@\"\n")
    ok(host, "chmod 755 /usr/local/bin/date")


def refused(hosts: Bare, *words: str) -> None:
    """A run that says `words`, and starts nothing."""
    done = hosts.cluster.pyinfra("-y", "--fail-percent", "0")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said, said
    assert [word for word in words if word not in said] == [], said
    assert hosts.a.exec("systemctl", "is-active", "--quiet", "vllm").returncode != 0


def reboot(host: Host) -> None:
    host.power_off()
    host.power_on()


def edited(host: Host, change: Callable[[dict[str, object]], object]) -> None:
    path = host.place.root / "etc" / "docker" / "daemon.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_neglected_hosts_are_refused_fix_by_fix_until_they_serve(
    hosts: Bare, repository: Repository
) -> None:
    a, b = hosts.a, hosts.b
    hosts.install("docker.io", "ufw", "netbase", only=a)
    hosts.install("docker.io", only=b)
    neglected_head(a)
    neglected_worker(b)
    image = ok(b, "docker image inspect --format '{{.Id}}' vllm-cluster/standin:1")

    refused(
        hosts, "[node-a] refused: /etc/hosts contradicts the description", "node-b is 10.77.0.99"
    )
    ok(a, "sed -i '/10.77.0.99/d' /etc/hosts")

    refused(hosts, "[node-b] refused: the clock is +90.")
    ok(b, "rm /usr/local/bin/date")

    refused(
        hosts, "[node-a] refused: node-b (10.77.0.12)",
        "the chain inet filter input of this host drops what it does not know",
    )  # fmt: skip
    ok(b, f"nft insert rule inet filter input {LET_IN}")
    write(b, "/etc/nftables.conf", RULES.replace("ip protocol icmp accept", LET_IN))

    refused(
        hosts, "[node-a] refused: MIG is on (GPU 0)",
        "driver 580.95.05 is loaded and 580.105.08 installed",
    )  # fmt: skip
    ok(a, "nvidia-smi -mig 0")
    reboot(b)

    refused(hosts, "names the default runtime 'kata'", "--label other=yes")
    edited(a, lambda config: config.pop("default-runtime"))
    ok(b, ": > /etc/default/docker")

    refused(hosts, "driver loaded: node-b has 580.105.08, not 580.95.05")
    describe(hosts, repository, install=True, version="580.105.08")

    refused(hosts, "[node-a] refused: driver 580.95.05 is loaded and 580.105.08 installed",
            "reboot this host")  # fmt: skip
    reboot(a)

    done = hosts.cluster.pyinfra("-y", "--fail-percent", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ok(a, "systemctl is-active vllm ray-head").split() == ["active", "active"]
    assert ok(b, "systemctl is-active ray-worker").strip() == "active"
    assert hosts.changed("cluster") == []
    assert ok(b, f"docker image inspect --format '{{{{.Id}}}}' {image.strip()}") == image


def test_what_the_run_left_is_whole(hosts: Bare) -> None:
    for host, container in ((hosts.a, "vllm"), (hosts.a, "ray-head"), (hosts.b, "ray-worker")):
        runtime = f"docker inspect --format '{{{{.HostConfig.Runtime}}}}' {container}"
        assert ok(host, runtime).strip() == "nvidia"
        inside = ok(host, f"docker exec {container} bash -c 'echo $NVIDIA_VISIBLE_DEVICES'")
        assert inside.strip() == "nvidia.com/gpu=all"
    for host in hosts.lab.hosts:
        assert ok(host, MODULE).strip() == "580.105.08"
        found = {line.split()[1]: line.split()[2] for line in ok(host, VERSIONS).splitlines()}
        assert found["nvidia-container-toolkit"] == "1.19.0-1"
        assert found["nvidia-utils"] == "580.105.08-1"
        assert "nvidia-open" in ok(host, "apt-mark showhold")
        assert ok(host, "dpkg --audit") == ""
        assert "Enabled" in ok(host, "nvidia-smi --query-gpu=persistence_mode")
        assert "580.105.08" in ok(host, "cat /var/run/cdi/nvidia.yaml")
        shm = f"docker exec {'ray-head' if host.name == 'node-a' else 'ray-worker'} bash -c"
        size = ok(host, f"{shm} 'while read -r _ at _ how _; do [ $at != /dev/shm ] || echo $how; "
                        "done < /proc/mounts'")  # fmt: skip
        assert "size=1048576k" in size


def test_what_was_there_before_is_still_there(hosts: Bare) -> None:
    a, b = hosts.a, hosts.b
    assert "10.9.9.9 printer # third floor" in ok(a, "cat /etc/hosts")
    assert "9100/tcp comment 'my exporter'" in ok(a, "ufw show added")
    config = json.loads(ok(a, "cat /etc/docker/daemon.json"))
    assert config["dns"] == DAEMON["dns"]
    assert config["labels"] == DAEMON["labels"]
    assert config["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert json.loads(ok(b, "cat /etc/docker/daemon.json"))["labels"] == ["mine=yes"]
    assert ok(b, "docker ps -a --format '{{.Names}}' | grep web").strip() == "web"
    table = ok(b, "nft list table inet filter")
    assert 'tcp dport 6379 accept comment "mine"' in table
    assert "policy drop" in table
    assert ok(b, "cat /etc/sysctl.d/50-mine.conf") == SYSCTL
    assert "8000-8001" in ok(b, "cat /proc/sys/net/ipv4/ip_local_reserved_ports")
    assert ok(a, "cat /etc/ssh/sshd_config.d/ports.conf") == "Port 22\nPort 2222\n"


def as_planned(hosts: Bare) -> None:
    outside, a, b = hosts.lab.layout.outside, hosts.a, hosts.b
    with listening([a, b], PORTS):
        assert scan(outside, a.address, [22, 2222, *PORTS]) == {22, 2222, 8000, 9100}
        assert scan(outside, b.address, [22, 2222, *PORTS]) == {22}
        assert scan(b.place.namespace, a.address, [22, *PORTS]) == {22, *PORTS}
        assert scan(a.place.namespace, b.address, [22, *PORTS]) == {22, *PORTS}


def test_a_container_that_lost_its_gpus_is_started_anew(hosts: Bare) -> None:
    ok(hosts.b, "docker exec ray-worker bash -c ': > /lost'")
    assert hosts.b.ssh("docker exec ray-worker nvidia-smi --list-gpus").returncode == 255
    assert hosts.changed("cluster") == ["GPUs in containers | See every container keep its GPUs"]
    seen = "docker exec ray-worker nvidia-smi --list-gpus"
    await_true("its GPUs again", lambda: hosts.b.ssh(seen).returncode == 0, timeout_s=60)
    done = hosts.cluster.pyinfra("-y", "-vv")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = remote_commands(done.stdout + done.stderr)
    assert max(counts.values()) < COMMANDS_OF_AN_EMPTY_RUN, counts
    assert hosts.changed("cluster") == []


def test_the_ports_are_as_planned_across_a_power_cut_and_a_docker_restart(hosts: Bare) -> None:
    as_planned(hosts)
    for host in hosts.lab.hosts:
        ok(host, "systemctl restart docker")
    as_planned(hosts)
    for host in hosts.lab.hosts:
        host.power_cut()
        host.power_on()
    as_planned(hosts)
    serving = ("systemctl", "is-active", "--quiet", "vllm")
    await_true("vLLM", lambda: hosts.a.exec(*serving).returncode == 0, timeout_s=180)
    assert hosts.changed("cluster") == []
