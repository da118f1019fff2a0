"""Docker on hosts that have one already, configured by somebody: merged, or refused in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.bare import Bare, bare, ok
from vllm_cluster.lab.host import Host

MINE = {
    "dns": ["10.77.0.1"],
    "default-ulimits": {"nofile": {"Name": "nofile", "Hard": 4096, "Soft": 4096}},
    "labels": ["mine=yes"],
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with bare("t-docker", tmp_path_factory.mktemp("docker"), hosts=1) as made:
        made.install("docker.io")
        yield made


@pytest.fixture
def hosts(module: Bare) -> Bare:
    """Docker as a fresh package has it."""
    module.edit()
    clean = "rm -rf /etc/docker /etc/systemd/system/docker.service.d; : > /etc/default/docker; "
    ok(module.a, clean + 'ids=$(docker ps -aq); [ -z "$ids" ] || docker rm -f $ids >/dev/null')
    ok(module.a, "systemctl daemon-reload; systemctl reset-failed docker; systemctl restart docker")
    return module


def configure(host: Host, config: dict[str, Any] | str) -> str:
    text = config if isinstance(config, str) else json.dumps(config)
    host.ssh("mkdir -p /etc/docker && cat > /etc/docker/daemon.json", stdin=text)
    return text


def configured(host: Host) -> Any:
    return json.loads(ok(host, "cat /etc/docker/daemon.json"))


def test_a_daemon_json_with_keys_of_others_is_merged_and_the_difference_told(hosts: Bare) -> None:
    configure(hosts.a, MINE)
    said = hosts.apply("docker")
    assert '+ log-driver: "local"' in said
    assert "10.77.0.1" not in said  # what stays is not told
    assert configured(hosts.a) == {
        **MINE, "log-driver": "local", "log-opts": {"max-size": "50m", "max-file": "3"}
    }  # fmt: skip
    assert ok(hosts.a, "docker info --format '{{.LoggingDriver}} {{.Labels}}'").split() == [
        "local", "[mine=yes]"
    ]  # fmt: skip
    assert hosts.changed("docker") == []


def test_drift_is_mended(hosts: Bare) -> None:
    hosts.apply("docker")
    configure(hosts.a, {"debug": True})
    ok(hosts.a, "systemctl stop docker.socket docker; systemctl disable --quiet docker")
    hosts.apply("docker")
    assert configured(hosts.a)["log-driver"] == "local"
    assert configured(hosts.a)["debug"] is True
    assert ok(hosts.a, "systemctl is-enabled docker; systemctl is-active docker").split() == [
        "enabled", "active"
    ]  # fmt: skip
    assert hosts.changed("docker") == []


def test_a_flag_that_says_the_same_as_our_default_stays_the_users(hosts: Bare) -> None:
    ok(hosts.a, "echo 'DOCKER_OPTS=\"--log-driver=journald\"' > /etc/default/docker")
    ok(hosts.a, "systemctl restart docker")
    configure(hosts.a, MINE)
    hosts.apply("docker")
    assert configured(hosts.a) == MINE
    assert ok(hosts.a, "docker info --format '{{.LoggingDriver}}'").strip() == "journald"


@pytest.mark.parametrize("place", ["/etc/default/docker", "a drop-in"])
def test_a_flag_that_conflicts_is_found_before_dockerd_refuses(hosts: Bare, place: str) -> None:
    if place == "a drop-in":
        unit = "[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H fd:// --label other=yes\n"
        drop_in = "/etc/systemd/system/docker.service.d/mine.conf"
        hosts.a.ssh(f"mkdir -p $(dirname {drop_in}) && cat > {drop_in}", stdin=unit)
        ok(hosts.a, "systemctl daemon-reload")
    else:
        ok(hosts.a, "echo 'DOCKER_OPTS=\"--label other=yes\"' > /etc/default/docker")
    ok(hosts.a, "systemctl restart docker")
    text = configure(hosts.a, MINE)
    said = hosts.refused("docker")
    assert "--label other=yes" in said
    assert "labels" in said
    assert ok(hosts.a, "cat /etc/docker/daemon.json") == text
    assert ok(hosts.a, "docker info --format '{{.Labels}}'").strip() == "[other=yes]"  # it runs on


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{ not json", "not JSON"),
        ('{"default-runtime": "kata"}', "names the default runtime 'kata'"),
    ],
)
def test_a_daemon_json_that_cannot_serve_is_refused(hosts: Bare, text: str, words: str) -> None:
    started = ok(hosts.a, "systemctl show -P ActiveEnterTimestampMonotonic docker")
    configure(hosts.a, text)
    assert words in hosts.refused("docker")
    assert ok(hosts.a, "cat /etc/docker/daemon.json") == text
    assert ok(hosts.a, "systemctl show -P ActiveEnterTimestampMonotonic docker") == started


def test_docker_that_does_not_start_anew_runs_on_as_before(hosts: Bare) -> None:
    text = configure(hosts.a, {"storage-opts": ["nonsense=1"]})  # dockerd is not told yet
    done = hosts.run("docker")
    assert done.returncode == 1
    assert "daemon.json is as before" in done.stdout + done.stderr
    assert ok(hosts.a, "cat /etc/docker/daemon.json") == text


def test_published_ports_and_restart_policies_are_told(hosts: Bare) -> None:
    ok(hosts.a, "tar -C / -c bin/true 2>/dev/null | docker import - tiny:1 >/dev/null")
    ok(hosts.a, "docker create --name web -p 8080:80 --restart always tiny:1 /bin/true")
    said = hosts.apply("docker")
    assert "the container web publishes 0.0.0.0:8080" in said
    assert "the container web restarts by Docker's own policy (always)" in said


def test_images_lie_on_the_disk_that_is_named(hosts: Bare) -> None:
    # The lab's only file system that carries Docker's layers is /var/lib/docker.
    hosts.edit(docker={"data_root": "/var/lib/docker/elsewhere"})
    hosts.apply("docker")
    root = ok(hosts.a, "docker info --format '{{.DockerRootDir}}'").strip()
    assert root == "/var/lib/docker/elsewhere"
    needs = ok(hosts.a, "systemctl show -P RequiresMountsFor docker")
    assert "/var/lib/docker/elsewhere" in needs
    assert hosts.changed("docker") == []


def test_a_container_of_somebody_elses_is_not_hidden_by_another_disk(hosts: Bare) -> None:
    ok(hosts.a, "tar -C / -c bin/true 2>/dev/null | docker import - tiny:1 >/dev/null")
    ok(hosts.a, "docker create --name web tiny:1 /bin/true")
    hosts.edit(docker={"data_root": "/var/lib/docker/elsewhere"})
    assert "Docker's data lies in /var/lib/docker, and web with it" in hosts.refused("docker")
    assert ok(hosts.a, "docker ps -a --format '{{.Names}}'").split() == ["web"]
