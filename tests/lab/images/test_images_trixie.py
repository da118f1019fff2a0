"""Debian 13: its Docker writes other archives, and may keep images in containerd's store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.bare import ok
from tests.lab.images.fleet import Fleet, fleet, plain
from tests.lab.images.made import make

pytestmark = pytest.mark.lab

MB = 1_000_000
# docker-cli is a package of its own there.
PACKAGES = ("docker.io", "docker-cli", "python3")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("images-trixie")
    with fleet("t-images-13", folder, hosts=2, release="trixie", packages=PACKAGES) as made:
        yield made


def test_an_image_comes_from_an_archive_and_from_a_host_and_only_its_changed_layer(
    hosts: Fleet,
) -> None:
    whole = make([(31, 20 * MB), (32, 10 * MB), (33, 2 * MB)])
    hosts.want(whole)
    hosts.apply()
    assert set(hosts.ids(whole.id).values()) == {whole.id}
    ok(hosts.hosts[1], f"docker rmi -f {whole.id}")
    with hosts.counted() as moved:
        hosts.apply()
    assert set(hosts.ids(whole.id).values()) == {whole.id}
    assert moved["node-a"][1] > 30 * MB
    assert moved["node-a"][0] < 3 * MB
    newer = make([(31, 20 * MB), (32, 10 * MB), (34, 2 * MB)])
    hosts.want(newer)
    with hosts.counted() as moved:
        hosts.apply()
    assert set(hosts.ids(newer.id).values()) == {newer.id}
    assert all(received < 4 * MB for received, _ in moved.values()), moved
    assert set(hosts.staged().values()) == {""}


def test_containerds_store_is_refused_with_the_setting(hosts: Fleet) -> None:
    first, second = hosts.hosts
    made = make([(35, MB)])
    hosts.want(made)
    ok(
        second,
        "mkdir -p /etc/docker && "
        'echo \'{"features": {"containerd-snapshotter": true}}\' > /etc/docker/daemon.json && '
        "systemctl restart docker && docker info -f '{{.DriverStatus}}' | grep snapshotter",
    )
    done = hosts.run()
    said = plain(done.stdout + done.stderr)
    assert done.returncode == 1, said
    assert "node-b: Docker keeps its images in containerd's store" in said
    assert '"containerd-snapshotter": false' in said
    ok(first, f"docker image inspect {made.id}")  # the other host has it all the same
