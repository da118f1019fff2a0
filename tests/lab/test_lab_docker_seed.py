"""Docker stores as snapshots: filled once by a real Docker, there at once on every host."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.lab.names import lab_name
from vllm_cluster.lab import Host, Lab, LabError, down, seed_docker

pytestmark = pytest.mark.lab
NAME = lab_name("t-lab-seed")
INSTALL = (
    "apt-get -q update && "
    "DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends docker.io"
)
IMPORT = "tar -C / -c bin lib lib64 usr/bin usr/lib64 | docker import - tiny:1"


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab.up(2, name=NAME)
    folder = lab.layout.cache / "docker-seed"
    before = set(folder.glob("*"))
    yield lab
    down(NAME)
    for new in set(folder.glob("*")) - before:
        new.rmdir() if new.is_dir() else new.unlink()  # fails when it is still mounted


def on(host: Host, command: str) -> str:
    done = host.ssh(command, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def mounted(lab: Lab) -> str:
    said = subprocess.run(["findmnt", "-rn"], check=True, capture_output=True, text=True).stdout
    folder = str(lab.layout.cache / "docker-seed")
    return "\n".join(line for line in said.splitlines() if folder in line or NAME in line)


def test_hosts_find_an_image_that_was_loaded_once(lab: Lab) -> None:
    filled: list[str] = []

    def fill(host: Host) -> None:
        filled.append(on(host, IMPORT))

    key = f"test-{uuid.uuid4()}"
    seed_docker(lab, key, fill)
    seed_docker(Lab.up(3, name=NAME), key, fill, hosts=["node-c"])
    assert len(filled) == 1
    first, second, third = Lab.load(NAME).hosts
    for host in (first, third):
        on(host, INSTALL)
        assert on(host, "docker image ls --no-trunc -q tiny:1") == filled[0]
        assert on(host, "docker info -f '{{.Driver}}'") == "overlay2"
    # a store is its host's own, and stays over a power cut
    on(first, "docker image rm tiny:1")
    first.power_cut()
    first.power_on()
    assert on(first, "docker image ls -q") == ""
    assert on(third, "docker image ls --no-trunc -q tiny:1") == filled[0]
    with pytest.raises(LabError, match="/var/lib/docker is not empty"):
        seed_docker(lab, key, fill, hosts=["node-b"])
    second.wipe()
    assert on(second, "ls /var/lib/docker") == ""
    down(NAME)
    assert mounted(lab) == ""
    assert not list((lab.layout.cache / "docker-seed").glob("half-*"))


def test_what_failed_to_fill_is_filled_anew(lab: Lab) -> None:
    key = f"test-{uuid.uuid4()}"

    def fail(_: Host) -> None:
        raise ValueError("no such archive")

    with pytest.raises(ValueError, match="no such archive"):
        seed_docker(lab, key, fail)
    seed_docker(lab, key, lambda host: print(on(host, IMPORT)), hosts=["node-a"])
    assert "overlay2" in on(lab.host("node-a"), "ls /var/lib/docker")
    assert "overlay2" not in on(lab.host("node-b"), "ls /var/lib/docker")
