"""Hosts wiped to a bare OS and made again: one story in order, with a stand-in image."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import with_standin
from tests.lab.harness import Cluster
from tests.lab.names import lab_name
from tests.lab.rebuilding import command, own_known_hosts, rebuild
from vllm_cluster.lab import Lab
from vllm_cluster.seed import host_key
from vllm_cluster.spec import load

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
NAME = lab_name("t-rebuild")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A deployed cluster of two hosts."""
    folder = tmp_path_factory.mktemp("rebuild")
    lab = Lab.up(2, name=NAME)
    try:
        made = with_standin(folder, lab, own_known_hosts(lab, folder))
        bare = command(made, "lock")
        assert bare.returncode == 1, bare.stdout
        assert "node-b: Docker does not answer, the image is not there" in bare.stderr
        assert not lock_file(made).exists()
        made.apply()
        yield made
    finally:
        lab.down()


def host_key_of(cluster: Cluster, host: str) -> str:
    """SHA256:… as the host itself prints it, past SSH."""
    file = "/etc/ssh/ssh_host_ed25519_key.pub"
    return cluster.lab.host(host).exec("ssh-keygen", "-lf", file).stdout.split()[1]


def known_hosts(cluster: Cluster) -> str:
    return (cluster.description.parent / "known_hosts").read_text()


def started(cluster: Cluster, host: str, container: str) -> str:
    shown = cluster.lab.host(host).exec(
        "docker", "container", "inspect", "--format", "{{.State.StartedAt}} {{.State.Running}}",
        container,
    )  # fmt: skip
    assert shown.stdout.strip().endswith(" true"), shown
    return shown.stdout.strip()


def lock_file(cluster: Cluster) -> Path:
    return cluster.description.with_suffix(".lock.json")


def tampered(cluster: Cluster, change: Any) -> str:
    """The lock file's text before `change` was made to its content."""
    text = lock_file(cluster).read_text()
    content = json.loads(text)
    change(content)
    lock_file(cluster).write_text(json.dumps(content))
    return text


def test_the_lock_says_what_the_hosts_have(cluster: Cluster) -> None:
    assert command(cluster, "lock", "--check").returncode == 2, "there is none yet"
    done = command(cluster, "lock")
    assert done.returncode == 0, done.stderr
    content = json.loads(lock_file(cluster).read_text())
    for host in ("node-a", "node-b"):
        packages = content["hosts"][host]["packages"]
        assert {"docker.io", "containerd", "nftables", "rsync"} <= packages.keys()
        query = "dpkg-query --show --showformat='${Version}' docker.io"
        assert packages["docker.io"] == cluster.on(host, query)
        assert content["hosts"][host]["kernel"] == cluster.on(host, "uname -r").strip()
    image = cluster.on("node-b", "docker inspect --format '{{.Image}}' ray-worker").strip()
    assert content["image"]["id"] == image
    manifest = "sha256sum /var/lib/vllm-cluster/models/tiny/*/.vllm-cluster/manifest.json"
    found = cluster.on("node-b", manifest + " 2>/dev/null || true").split()
    assert not found or content["model"]["identity"] == found[0]

    written = lock_file(cluster).read_bytes()
    assert "says that already" in command(cluster, "lock").stdout
    assert lock_file(cluster).read_bytes() == written
    assert command(cluster, "lock", "--check").returncode == 0
    assert cluster.planned() == {}


def test_a_wiped_worker_comes_back_as_it_was(cluster: Cluster) -> None:
    head = started(cluster, "node-a", "ray-head")
    old = host_key_of(cluster, "node-b")
    run = rebuild(cluster, "node-b", "--yes", "--accept-new-host-key")
    run.await_words("its old system still answers")
    cluster.lab.host("node-b").wipe()
    assert run.end() == 0, run.text
    assert "node-b: the same fingerprint as at" in run.text
    new = host_key_of(cluster, "node-b")
    assert old != new
    assert f"known until now as {old}" in run.text
    assert f"answers with ssh-ed25519 {new}" in run.text
    # No more than Ray forces: its head was not even started again.
    assert started(cluster, "node-a", "ray-head") == head
    started(cluster, "node-b", "ray-worker")
    assert cluster.planned() == {}


def test_the_head_comes_back_as_it_was(cluster: Cluster) -> None:
    cluster.lab.host("node-a").wipe()
    run = rebuild(cluster, "node-a", "--yes", "--accept-new-host-key")
    assert run.end() == 0, run.text
    assert "node-a is the head" in run.text
    assert "node-a: the same fingerprint" in run.text
    for host, unit in (("node-a", "ray-head"), ("node-a", "vllm"), ("node-b", "ray-worker")):
        assert cluster.on(host, f"systemctl is-active {unit}").strip() == "active"


def test_another_image_is_refused_before_a_host_is_contacted(cluster: Cluster) -> None:
    before = tampered(cluster, lambda lock: lock["image"].update(id="sha256:" + "0" * 64))
    try:
        done = cluster.pyinfra("-y")
    finally:
        lock_file(cluster).write_text(before)
    assert done.returncode == 1
    assert "image.id: found sha256:" in done.stderr
    assert "make lock" in done.stderr
    assert "Connect" not in done.stdout + done.stderr


def test_a_drifted_host_stops_the_run_in_the_table(cluster: Cluster) -> None:
    runs = started(cluster, "node-b", "ray-worker")
    before = tampered(
        cluster, lambda lock: lock["hosts"]["node-b"]["packages"].update(rsync="9.9-9")
    )
    try:
        done = cluster.pyinfra("-y")
    finally:
        lock_file(cluster).write_text(before)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "package rsync: node-b has" in said
    assert "the locked 9.9-9" in said
    assert started(cluster, "node-b", "ray-worker") == runs


def test_a_key_that_nobody_takes_ends_it_and_a_second_run_goes_on(cluster: Cluster) -> None:
    cluster.lab.host("node-b").wipe()
    known = known_hosts(cluster)
    run = rebuild(cluster, "node-b", "--yes", answers="n\n")
    assert run.end() == 1
    assert "its new key was not taken" in run.text
    assert known_hosts(cluster) == known
    assert cluster.lab.host("node-b").exec("test", "-e", "/etc/vllm-cluster").returncode == 1

    # A version that no source has any more: nothing of it is installed, and the reason is said.
    before = tampered(
        cluster, lambda lock: lock["hosts"]["node-b"]["packages"].update({"docker.io": "1.0-1"})
    )
    try:
        run = rebuild(cluster, "node-b", "--yes", answers="y\n")
        assert run.end() == 1
    finally:
        lock_file(cluster).write_text(before)
    assert "docker.io is locked at 1.0-1, and the sources of this host have" in run.text
    assert cluster.on("node-b", "command -v dockerd || echo none").strip() == "none"

    run = rebuild(cluster, "node-b", "--yes")
    assert run.end() == 0, run.text
    assert "goes on with a rebuild that was begun" in run.text
    assert "the same fingerprint" in run.text


def test_what_a_rebuild_does_not_bring_back_is_a_line_each(cluster: Cluster) -> None:
    cluster.on("node-b", "echo mine > /etc/mine.conf; apt-get install -qq -y sl >/dev/null")
    run = rebuild(cluster, "node-b", "--yes", "--accept-new-host-key")
    run.await_words("its old system still answers")
    cluster.lab.host("node-b").wipe()
    assert run.end() == 1, run.text
    lines = [line for line in run.text.splitlines() if ", then nothing" in line]
    assert any("file /etc/mine.conf: " in line for line in lines), run.text
    assert any("package sl: " in line for line in lines), run.text


INSTALL = """
install:
  system: debian-12
  host_key: seed
  hosts:
    node-b:
      disk: /dev/disk/by-id/virtio-os
      cards: [{name: fabric0, address: 10.77.0.12/24}]
"""


def test_a_key_that_the_seed_carries_is_taken_and_no_other(cluster: Cluster) -> None:
    text = cluster.description.read_text()
    strict = text.replace("ssh:\n", "ssh:\n  host_keys: 'yes'\n", 1)
    cluster.description.write_text(strict + INSTALL)
    try:
        refused = rebuild(cluster, "node-b", "--yes", "--accept-new-host-key")
        assert refused.end() == 2
        assert "takes no key unasked" in refused.text

        run = rebuild(cluster, "node-b", "--yes")
        run.await_words("its old system still answers")
        host = cluster.lab.host("node-b")
        host.wipe()
        run.await_words("not its seed's key")
        pair = host_key.kept(load(cluster.description), "node-b")
        assert pair is not None
        key = "/etc/ssh/ssh_host_ed25519_key"
        put = f"umask 077; cat > {key} && ssh-keygen -y -f {key} > {key}.pub"
        assert host.exec("sh", "-c", put, stdin=pair.private).returncode == 0
        host.exec("systemctl", "restart", "ssh")
        assert run.end() == 0, run.text
        assert "that is the key of its seed" in run.text
        assert "the same fingerprint" in run.text
    finally:
        cluster.description.write_text(text)
    lines = known_hosts(cluster).splitlines()
    mine = [line for line in lines if "10.77.0.12" in line.split()[0].split(",")]
    assert [line.split()[1:3] for line in mine] == [pair.public.split()[:2]]
    shown = subprocess.run(
        ["ssh-keygen", "-F", "node-b", "-f", str(cluster.description.parent / "known_hosts")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert pair.public.split()[1] in shown.stdout, "the name beside the address stays"
