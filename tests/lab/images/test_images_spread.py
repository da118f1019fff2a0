"""The image from an archive on every host: once over the first link, then from host to host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.bare import ok
from tests.lab.harness import remote_commands
from tests.lab.images.fleet import DEPLOY, STAGED, Fleet, fleet, plain
from tests.lab.images.made import TAG, Made, make

pytestmark = pytest.mark.lab

MB = 1_000_000
LAYER = 60 * MB
RATE = "100mbit"
BASE = [(1, LAYER), (2, LAYER), (3, LAYER), (4, LAYER), (5, LAYER)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet("t-images", tmp_path_factory.mktemp("images")) as made:
        yield made


@pytest.fixture(scope="module")
def whole() -> Made:
    """300 MB in five layers and one of 8 MB."""
    return make([*BASE, (6, 8 * MB)])


def equal(hosts: Fleet, made: Made) -> None:
    """Every host's Docker has this very image, and nothing of ours is left beside it."""
    assert set(hosts.ids(made.id).values()) == {made.id}
    assert set(hosts.staged().values()) == {""}


def test_four_hosts_take_hardly_longer_than_two_and_a_second_run_sends_nothing(
    hosts: Fleet, whole: Made
) -> None:
    hosts.want(whole)
    hosts.empty()
    hosts.shape(RATE)
    with hosts.counted() as moved:
        _, two_s = hosts.apply("node-a", "node-b")
    ids = hosts.ids(whole.id)
    assert ids == {"node-a": whole.id, "node-b": whole.id, "node-c": "", "node-d": ""}
    hosts.empty()
    with hosts.counted() as moved:
        _, four_s = hosts.apply()
    size = sum(len(layer) for layer in whole.layers)
    print(f"{size / MB:.0f} MB at {RATE}: two hosts {two_s:.1f} s, four hosts {four_s:.1f} s")
    print({name: f"{r / size:.3f} in, {s / size:.3f} out" for name, (r, s) in moved.items()})
    equal(hosts, whole)
    assert set(hosts.ids(TAG).values()) == {whole.id}
    assert four_s < 1.5 * two_s
    for name, (received, sent) in moved.items():
        assert received < 1.08 * size, name
        assert sent < (0.05 if name == "node-d" else 1.08) * size, name
    hosts.shape(None)
    with hosts.counted() as moved:
        done = hosts.cluster.pyinfra("-y", "-vv", deploy=DEPLOY)
    assert done.returncode == 0
    words = plain(done.stdout + done.stderr)
    assert "is there" in words
    # One question to Docker, beside what pyinfra itself asks at the start of every run.
    assert all(count <= 3 for count in remote_commands(words).values()), remote_commands(words)
    assert all(r + s < 100_000 for r, s in moved.values()), moved


def test_of_a_changed_image_only_the_changed_layer_travels(hosts: Fleet, whole: Made) -> None:
    hosts.want(whole)
    hosts.apply()
    newer = make([*BASE, (7, 8 * MB)])
    hosts.want(newer)
    with hosts.counted() as moved:
        hosts.apply()
    equal(hosts, newer)
    assert set(hosts.ids(TAG).values()) == {newer.id}
    for name, (received, sent) in moved.items():
        assert received < 10 * MB, name
        assert sent < 10 * MB, name
    # ... nor does a layer whose base is another, and which is another to Docker therefore.
    based = make([(8, 3 * MB), *BASE[1:], (7, 8 * MB)])
    hosts.want(based)
    with hosts.counted() as moved:
        said, _ = hosts.apply()
    assert "takes 5 of 6 layers from its" in said
    equal(hosts, based)
    assert all(received < 5 * MB for received, _ in moved.values()), moved


def test_a_host_that_lacks_it_gets_it_from_one_that_has_it(hosts: Fleet, whole: Made) -> None:
    archive = hosts.want(whole)
    hosts.empty()  # of other images, whose layers would be taken
    hosts.apply()
    ok(hosts.hosts[2], f"docker rmi -f {whole.id}")
    with hosts.counted() as moved:
        said, _ = hosts.apply()
    equal(hosts, whole)
    size = sum(len(layer) for layer in whole.layers)
    received = {name: r / size for name, (r, _) in moved.items()}
    assert 0.95 < received["node-c"] < 1.08
    assert all(share < 0.02 for name, share in received.items() if name != "node-c"), received
    assert "node-a] serving" in said
    # Neither is the archive read for it: a --limit to the one host finds the others all the same.
    ok(hosts.hosts[2], f"docker rmi -f {whole.id}")
    Path(archive).chmod(0o600)
    with hosts.counted() as moved:
        hosts.apply("node-c")
    equal(hosts, whole)
    assert moved["node-a"][1] > 0.95 * size


def test_a_disk_without_room_is_told_before_the_first_byte(hosts: Fleet, whole: Made) -> None:
    hosts.want(whole)
    hosts.empty()
    small = hosts.hosts[1]
    device = small.add_disk(900 * MB)
    ok(small, f"systemctl stop docker docker.socket; mkfs.ext4 -q -m 0 {device}")
    ok(small, f"mount {device} /var/lib/docker && systemctl start docker")
    try:
        done = hosts.run()
        said = plain(done.stdout + done.stderr)
        assert done.returncode == 1, said
        assert "node-b: /var/lib/docker has 0." in said
        assert ok(small, f"du -s {STAGED} 2>/dev/null | cut -f1").strip() in {"", "0", "4"}
        found = hosts.ids(whole.id)
        assert found == {n: "" if n == "node-b" else whole.id for n in found}, said
    finally:
        ok(small, "systemctl stop docker docker.socket; umount /var/lib/docker")
        ok(small, "systemctl start docker")
    hosts.apply()
    equal(hosts, whole)
