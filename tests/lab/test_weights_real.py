"""Real vLLM answers from the tiny model, placed by each kind of source."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.harness import ROOT, Cluster, describe
from tests.lab.names import lab_name
from tests.lab.weights_deploy import WEIGHTS, command, edit, sums, sums_on
from vllm_cluster.control.context import outline
from vllm_cluster.lab import Lab
from vllm_cluster.lab.layout import CONTROL_ADDRESS

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40
MODEL = ROOT / ".cache" / "model" / "tiny"
TOKEN = "hf_opens_the_gate"
CDN_ADDRESS = "10.77.0.2"
# Where the token could have been left: files, journal, processes, containers. It comes as input, so
# that the search does not find itself.
LEFT_BEHIND = r"""
read -r token
grep -rlF "$token" /var/lib/vllm-cluster /etc/vllm-cluster /run/vllm-cluster /tmp /root 2>/dev/null
for text in "$(journalctl --no-pager)" "$(ps auxww)" "$(docker inspect $(docker ps -aq))"; do
  case $text in *"$token"*) echo "shown" ;; esac
done
echo looked
"""
# The lab's kernel has no NFS client. This takes the place of nfs-common's program and shows a
# directory of the host itself, read-only, where systemd's mount unit asks for the share: what reads
# the model there is proven here, NFS itself on kernels of their own (tests/vm/test_storage_vm.py).
# The kernel does not call it NFS, and a second run takes it for another's mount: each test mounts
# where nothing was, and deploys once.
STAND_IN_FOR_MOUNT_NFS = """#!/bin/sh
set -e
mount --bind /srv/stand-in-for-nfs "$2"
mount -o remount,bind,ro "$2"
"""
SERVED = "/srv/stand-in-for-nfs/tiny"
SHARD = f"{SERVED}/model-00001-of-00002.safetensors"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab.up(2, name=lab_name("t-weights-real"))
    try:
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def endpoint(lab: Lab) -> Iterator[str]:
    """A hub in the lab's switch, gated, with a second name for its large files."""
    enter = ["ip", "netns", "exec", lab.layout.switch]
    held = subprocess.run([*enter, "ip", "-o", "-4", "address"], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip
    line = next(line for line in held.splitlines() if CONTROL_ADDRESS in line)
    add = ["ip", "address", "add", f"{CDN_ADDRESS}/32", "dev", line.split()[1]]
    subprocess.run([*enter, *add], check=True)
    argv = [*enter, sys.executable, "-m", "tests.hub_server", CONTROL_ADDRESS, CDN_ADDRESS]
    process = subprocess.Popen(
        [*argv, "org/tiny", COMMIT, str(MODEL), TOKEN],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return describe(lab, tmp_path_factory.mktemp("inventory"))


@pytest.fixture(scope="module")
def reference() -> Any:
    return json.loads((ROOT / ".cache" / "model" / "reference.json").read_text())


def from_sources(cluster: Cluster, revision: str, *sources: dict[str, str]) -> Cluster:
    def described(text: dict[str, Any]) -> None:
        text["model"] = {"name": "tiny", "directory": "org/tiny", "revision": revision,
                         "sources": list(sources)}  # fmt: skip

    return edit(cluster, described)


@pytest.fixture(scope="module")
def served(lab: Lab, cluster: Cluster) -> None:
    """The stand-in for mount.nfs4 on both hosts, which dpkg leaves where it is, and its files."""
    for host in ("node-a", "node-b"):
        cluster.on(host, f"mkdir -p {SERVED} && dpkg-divert --quiet --local --rename "
                   "--divert /sbin/mount.nfs4.of-nfs-common --add /sbin/mount.nfs4")  # fmt: skip
        put = "cat > /sbin/mount.nfs4 && chmod 755 /sbin/mount.nfs4"
        assert lab.host(host).ssh(put, stdin=STAND_IN_FOR_MOUNT_NFS).returncode == 0
        argv = lab.host(host).exec_argv(["tar", "-x", "-C", SERVED])
        with subprocess.Popen(["tar", "-c", "-C", str(MODEL), "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(argv, stdin=tar.stdout, check=True)


def on_a_share(cluster: Cluster, where: str, **sections: dict[str, Any]) -> Cluster:
    """A description of its own with a share of a server that is no host of the cluster."""

    def described(text: dict[str, Any]) -> None:
        share = {"server": CONTROL_ADDRESS, "export": "/srv/models"}
        text["storage"] = {"nfs": {where: share}}
        text.update(sections)

    return edit(cluster, described, name="nfs")


def is_mounted_by_its_unit(cluster: Cluster, where: str) -> None:
    unit = where.strip("/").replace("/", "-")
    for host in ("node-a", "node-b"):
        text = cluster.on(host, f"cat /etc/systemd/system/{unit}.mount")
        assert "Type=nfs4" in text
        assert f"What={CONTROL_ADDRESS}:/srv/models" in text
        assert cluster.on(host, f"systemctl is-active {unit}.mount").strip() == "active"
        assert cluster.lab.host(host).ssh(f"touch {where}/tiny/x").returncode != 0


def answers(cluster: Cluster, reference: Any) -> None:
    choice = cluster.complete(reference["prompt"], len(reference["token_ids"]))
    assert choice is not None
    assert choice["token_ids"] == reference["token_ids"]


def test_a_revision_that_the_hub_has_not_and_a_gate_that_is_shut_are_one_sentence_each(
    cluster: Cluster, endpoint: str
) -> None:
    hub = {"hub": "org/tiny", "endpoint": endpoint}
    done = from_sources(cluster, COMMIT, hub).pyinfra("-y")
    assert done.returncode != 0
    assert (
        f"org/tiny is gated: accept its terms at {endpoint}/org/tiny" in done.stdout + done.stderr
    )
    done = command(from_sources(cluster, OTHER, hub), "place")
    assert done.returncode == 1
    assert f"org/tiny has no revision {OTHER} at {endpoint}" in done.stderr + done.stdout
    for host in ("node-a", "node-b"):
        assert cluster.on(host, f"ls {WEIGHTS}/.store", check=False).split() == []
        assert cluster.lab.host(host).ssh(f"test -e {WEIGHTS}/org--tiny").returncode != 0
    assert not cluster.inventory.with_name("lab.lock.json").exists()


def test_from_a_hub_with_the_token_on_the_downloading_host_alone(
    cluster: Cluster, endpoint: str, reference: Any
) -> None:
    secret = cluster.inventory.with_name("token")
    secret.touch(0o600)
    secret.write_text(TOKEN)
    made = from_sources(cluster, COMMIT, {"hub": "org/tiny", "endpoint": endpoint})

    def described(text: dict[str, Any]) -> None:
        text["secrets"] = {"hub_token": {"file": str(secret)}}

    edit(made, described).apply()
    answers(cluster, reference)
    arguments = cluster.on("node-a", "docker inspect vllm --format '{{json .Args}}'")
    assert f"{WEIGHTS}/org--tiny/{COMMIT}" in arguments
    lock = json.loads(cluster.inventory.with_name("lab.lock.json").read_text())["models"]
    assert list(lock) == [f"org/tiny@{COMMIT}"]
    assert cluster.planned() == {}
    for host in ("node-a", "node-b"):
        done = cluster.lab.host(host).ssh(LEFT_BEHIND, stdin=f"{TOKEN}\n", timeout_s=300)
        assert done.stdout == "looked\n", f"{host}: {done.stdout}"
    edit(cluster, lambda text: text.pop("secrets"))


def test_from_a_directory_of_this_machine(cluster: Cluster, reference: Any) -> None:
    made = from_sources(cluster, "v-here", {"here": str(MODEL)})
    made.apply()
    answers(cluster, reference)
    arguments = cluster.on("node-a", "docker inspect vllm --format '{{json .Args}}'")
    assert f"{WEIGHTS}/org--tiny/v-here" in arguments
    held = cluster.on("node-a", f"find {WEIGHTS}/.pins -name vllm.service").split()
    assert len(held) == 1, "the unit lets go of the revision that it used before"


def test_from_a_directory_of_a_host(cluster: Cluster, reference: Any) -> None:
    argv = cluster.lab.host("node-b").exec_argv(["sh", "-c", "mkdir -p /srv/m && tar -x -C /srv/m"])
    with subprocess.Popen(["tar", "-c", "-C", str(MODEL), "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(argv, stdin=tar.stdout, check=True)
    missing = {"here": "/nowhere"}
    made = from_sources(cluster, "v-host", missing, {"host": "node-b", "directory": "/srv/m"})
    made.apply()
    answers(cluster, reference)
    # A way back needs the weights of its generation: all three are kept, and so are their copies.
    there = cluster.on("node-a", f"ls {WEIGHTS}/org--tiny").split()
    assert sorted(there) == [COMMIT, "v-here", "v-host"]
    pinned = cluster.on("node-a", f"ls {WEIGHTS}/.pins/*").split()
    assert sum(word.startswith("generation-") for word in pinned) == 3


@pytest.mark.usefixtures("served")
def test_from_an_nfs_share(cluster: Cluster, reference: Any) -> None:
    model = {"name": "tiny", "directory": "org/tiny", "revision": "v-nfs",
             "sources": [{"nfs": "/mnt/models/tiny"}]}  # fmt: skip
    made = on_a_share(cluster, "/mnt/models", model=model)
    made.apply()
    is_mounted_by_its_unit(made, "/mnt/models")
    answers(made, reference)
    path = f"{WEIGHTS}/org--tiny/v-nfs"
    assert path in made.on("node-a", "docker inspect vllm --format '{{json .Args}}'")
    for host in ("node-a", "node-b"):
        assert sums_on(made, host, path) == sums(MODEL), host


@pytest.mark.usefixtures("served")
def test_read_from_an_nfs_share_at_each_start(cluster: Cluster, reference: Any) -> None:
    made = on_a_share(
        cluster, "/srv/nfs",
        model={"name": "tiny", "directory": "tiny", "revision": "v-on-nfs"},
        weights={"directory": "/srv/nfs", "storage": "nfs"},
    )  # fmt: skip
    made.apply()
    is_mounted_by_its_unit(made, "/srv/nfs")
    answers(made, reference)
    assert "/srv/nfs/tiny" in made.on("node-a", "docker inspect vllm --format '{{json .Args}}'")
    for host, unit in (("node-a", "vllm"), ("node-a", "ray-head"), ("node-b", "ray-worker")):
        assert "/srv/nfs" in made.on(host, f"systemctl show -P RequiresMountsFor {unit}").split()

    # Bytes that rot on the server: no name, size or time tells. The head reads for all.
    check = shlex.join(outline(made.description).plan.weights.check("vllm.service"))
    rot = f"cp -p {SHARD} /root/whole && printf rotten | dd of={SHARD} bs=1 seek=1000000"
    made.on("node-a", f"{rot} conv=notrunc status=none && touch -r /root/whole {SHARD}")
    for host in ("node-a", "node-b"):
        assert made.lab.host(host).ssh(check).returncode == 0, f"{host}: a glance cannot know"
    done = command(made, "verify")
    assert done.returncode == 1, done.stdout
    assert f"other than when they were noted: {Path(SHARD).name}" in done.stderr
    for host in ("node-a", "node-b"):
        refused = made.lab.host(host).ssh(check)
        assert refused.returncode == 4, f"{host}: {refused.stdout}{refused.stderr}"
        assert "held wrong bytes when it was last read" in refused.stderr
    made.on("node-a", f"cat /root/whole > {SHARD} && touch -r /root/whole {SHARD}")
    done = command(made, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("node-a", "node-b"):
        assert made.lab.host(host).ssh(check).returncode == 0, f"{host}: read right again"


def test_from_a_file_system_that_the_hosts_share(cluster: Cluster, reference: Any) -> None:
    for host in ("node-a", "node-b"):
        cluster.on(host, "mkdir -p /srv/disk/tiny /srv/shared")
        argv = cluster.lab.host(host).exec_argv(["tar", "-x", "-C", "/srv/disk/tiny"])
        with subprocess.Popen(["tar", "-c", "-C", str(MODEL), "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(argv, stdin=tar.stdout, check=True)
        cluster.on(
            host, "mount --bind /srv/disk /srv/shared && mount -o remount,bind,ro /srv/shared"
        )

    def described(text: dict[str, Any]) -> None:
        text["model"] = {"name": "tiny", "directory": "tiny", "revision": "v-shared"}
        text["weights"] = {"directory": "/srv/shared", "storage": "shared"}

    made = edit(cluster, described)
    made.apply()
    answers(cluster, reference)
    arguments = cluster.on("node-a", "docker inspect vllm --format '{{json .Args}}'")
    assert "/srv/shared/tiny" in arguments
    assert cluster.planned() == {}

    cluster.on("node-b", "echo ' ' >> /srv/disk/tiny/config.json")
    done = made.pyinfra("-y")
    assert done.returncode != 0
    assert "config.json: the size is not the manifest's" in done.stdout + done.stderr
    done_ = cluster.lab.host("node-b").ssh("systemctl restart ray-worker")
    assert done_.returncode != 0
    status = cluster.on("node-b", "systemctl status --no-pager ray-worker", check=False)
    assert "config.json: the size is not the manifest's" in status
