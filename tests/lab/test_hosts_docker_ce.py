"""Docker's own packages, where the description asks for them, from a repository that is signed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.bare import Bare, bare, ok
from tests.lab.vendor import docker_ce


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with bare("t-dockerce", tmp_path_factory.mktemp("docker-ce"), hosts=1) as made:
        yield made


def installed(hosts: Bare) -> set[str]:
    query = "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' 'docker*' 'containerd*' || true"
    rows = (line.split() for line in ok(hosts.a, query).splitlines())
    return {name for status, name in rows if status == "installed"}


def test_docker_comes_from_its_own_repository_and_starts_once_with_our_settings(
    hosts: Bare, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = docker_ce.build(hosts.a, tmp_path_factory.mktemp("packages"))
    hosts.edit(docker={"packages": "docker", "source": {**source, "fingerprint": "0" * 40}})
    assert str(source["fingerprint"]) in hosts.refused("docker")  # a key of somebody else's
    assert installed(hosts) == set()

    hosts.edit(docker={"packages": "docker", "source": source})
    hosts.apply("docker")
    assert installed(hosts) == {"docker-ce", "docker-ce-cli", "containerd.io"}
    assert "file:/srv/docker" in ok(hosts.a, "apt-cache policy docker-ce")
    assert ok(hosts.a, "docker info --format '{{.LoggingDriver}}'").strip() == "local"
    starts = "journalctl --unit=docker --output=cat --grep='API listen on'"
    assert len(ok(hosts.a, starts).splitlines()) == 1
    assert ok(hosts.a, "systemctl is-enabled docker").strip() == "enabled"
    assert hosts.changed("docker") == []


def test_an_engine_that_is_there_stays(hosts: Bare) -> None:
    hosts.edit()
    assert hosts.changed("docker") == []
    hosts.wipe()
    hosts.install("docker.io")
    hosts.edit(docker={"packages": "docker"})
    hosts.apply("docker")
    assert "docker.io" in installed(hosts)
    assert "docker-ce" not in installed(hosts)
