"""An image of a registry: pulled once, by one host, and on all of them under its digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.bare import ok
from tests.lab.images import registry
from tests.lab.images.fleet import Fleet, fleet, plain
from tests.lab.images.made import make

pytestmark = pytest.mark.lab

MB = 1_000_000


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet("t-images-reg", tmp_path_factory.mktemp("images-reg"), hosts=3) as made:
        yield made


def test_it_leaves_the_registry_once_and_every_host_has_the_right_one(
    hosts: Fleet, tmp_path: Path
) -> None:
    made = make([(1, 30 * MB), (2, 20 * MB), (3, 2 * MB)])
    reference = registry.fill(made, tmp_path / "registry")
    tag = reference.replace("@sha256:", ":sha256-")
    hosts.edit({"reference": reference})
    first, second, third = hosts.hosts
    with registry.serving(first, tmp_path / "registry") as log:
        assert second.ssh(f"docker pull {reference}").returncode != 0
        with hosts.counted() as moved:
            said, _ = hosts.apply()
        asked = log.read_text().splitlines()
        blobs = [line for line in asked if line.startswith("GET") and "/blobs/" in line]
        assert len(blobs) == len(set(blobs)) == 4, asked
        assert set(hosts.ids(tag).values()) == {made.id}
        assert set(hosts.staged().values()) == {""}
        size = sum(len(layer) for layer in made.layers)
        assert moved["node-b"][0] > 0.95 * size
        assert moved["node-c"][0] > 0.95 * size
        assert "pulls 127.0.0.1:5055/lab/made@sha256:" in said
        said, _ = hosts.apply()
        assert said.count("No changes") == 2 * 3  # the lock, the image
        assert log.read_text().splitlines() == asked
    # ... and the registry need not be there for a host that comes later.
    ok(third, f"docker rmi -f {made.id}")
    hosts.apply()
    assert set(hosts.ids(tag).values()) == {made.id}
    # One that was pulled by hand lacks only the name.
    with registry.serving(first, tmp_path / "registry"):
        ok(first, f"docker rmi -f {made.id} && docker pull -q {reference}")
    with hosts.counted() as moved:
        hosts.apply()
    assert set(hosts.ids(tag).values()) == {made.id}
    assert all(received < MB for received, _ in moved.values()), moved


def test_a_digest_that_does_not_exist_is_told_with_every_hosts_reason(
    hosts: Fleet, tmp_path: Path
) -> None:
    made = make([(9, MB)])
    registry.fill(made, tmp_path / "registry")
    hosts.edit({"reference": f"127.0.0.1:{registry.PORT}/lab/made@sha256:{'0' * 64}"})
    with registry.serving(hosts.hosts[0], tmp_path / "registry"):
        done = hosts.run()
    said = plain(done.stdout + done.stderr)
    assert done.returncode == 1, said
    assert "node-a: `docker pull --quiet 127.0.0.1:5055/lab/made@sha256:0" in said
    assert "node-c: `docker pull --quiet 127.0.0.1:5055/lab/made@sha256:0" in said
    assert "Traceback" not in said
