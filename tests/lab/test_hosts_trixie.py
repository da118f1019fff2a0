"""Debian 13, where it differs from 12: the docker command's own package, apt's own verifier."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.lab.bare import Bare, bare, ok
from tests.lab.vendor.repository import build


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    folder = tmp_path_factory.mktemp("trixie")
    with bare("t-trixie", folder, hosts=1, release="trixie") as made:
        yield made


def test_a_bare_host_gets_every_part_and_the_second_run_changes_nothing(hosts: Bare) -> None:
    parts = ("names", "network", "kernel", "firewall", "docker")
    for part in parts:
        hosts.apply(part)
    assert "13" in ok(hosts.a, ". /etc/os-release; echo $VERSION_ID")
    version = ok(hosts.a, "docker version --format '{{.Client.Version}} {{.Server.Version}}'")
    assert len(version.split()) == 2
    assert "docker-cli" in ok(hosts.a, "dpkg-query -W docker-cli")
    assert ok(hosts.a, "getent ahostsv4 node-a").split()[0] == "10.77.0.11"
    assert 'comment "API"' in ok(hosts.a, "nft list table inet vllm_cluster")
    for part in parts:
        assert hosts.changed(part) == [], part


def test_a_daemon_json_is_tried_before_it_is_written(hosts: Bare) -> None:
    # dockerd 23 and newer can check a file without starting.
    ok(hosts.a, "printf '{\"nonsense\": 1}' > /etc/docker/daemon.json")
    started = ok(hosts.a, "systemctl show -P ActiveEnterTimestampMonotonic docker")
    done = hosts.run("docker")
    assert done.returncode == 1
    assert "nonsense" in done.stdout + done.stderr
    assert ok(hosts.a, "cat /etc/docker/daemon.json") == '{"nonsense": 1}'
    assert ok(hosts.a, "systemctl show -P ActiveEnterTimestampMonotonic docker") == started
    ok(hosts.a, "rm /etc/docker/daemon.json")


def test_a_signed_repository_is_trusted_by_sqv_too(
    hosts: Bare, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = build(tmp_path_factory.mktemp("vendor"))
    shutil.copytree(repository.folder, hosts.a.place.root / "srv" / "vendor")
    cards = hosts.a.place.root / "etc" / "standin"
    cards.mkdir()
    (cards / "cards").write_text("NVIDIA H100 80GB HBM3, 81559, 0, No, No\n")
    source = repository.source("file:/srv/vendor")
    hosts.edit(
        gpu={"kind": "nvidia", "model": "H100"},
        driver={"source": source, "install": True, "branch": "580"},
        toolkit={"source": source},
    )
    hosts.apply("gpu")
    assert "580.105.08" in ok(hosts.a, "nvidia-smi --list-gpus; cat /sys/module/nvidia/version")
    assert hosts.changed("gpu") == []
