"""`vllm-cluster down`: a host that was deployed to and put back is the host that it was."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.conftest import with_standin
from tests.lab.harness import BIN, ROOT, Cluster
from tests.lab.names import lab_name
from tests.lab.whole_host import Allowed, differences, look
from vllm_cluster.facts.fingerprint import parse, script
from vllm_cluster.lab import Lab
from vllm_cluster.plan import fingerprint

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600)]
NAME = lab_name("t-removal")
WEIGHTS = "/var/lib/vllm-cluster/models"
DAEMON = "/etc/docker/daemon.json"

EVERYTHING = ("--yes", "--packages", "--no-keep-weights")
# Each of these is left by apt, dpkg, systemd, Docker or time itself, not by us, and says so.
ALLOWED = (
    Allowed(
        "files", r"^/var/lib/apt/(lists|extended_states|periodic)", "`apt-get update` fills it"
    ),
    Allowed("files", r"^/var/lib/dpkg/", "dpkg's own books and backups; `dpkg -l` is compared"),
    Allowed("files", r"^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$", "backups by useradd"),
    Allowed("files", r"^/var/lib/ucf/", "books of ucf, which some packages use"),
    Allowed("files", r"^/etc/ld\.so\.cache$", "ldconfig writes it anew, with a date"),
    Allowed("files", r"^/var/lib/systemd/(timers|timesync|random-seed|catalog)", "of systemd"),
    Allowed("settings", r"^fs\.(dentry-state|inode-|file-nr|aio-nr|quota)", "counters"),
    Allowed("settings", r"^kernel\.(random|ns_last_pid|pty\.nr|perf_event_max)", "counters"),
    Allowed("settings", r"^net\.netfilter\.nf_conntrack_count$", "a counter"),
    Allowed("settings", r"^(net\.(bridge|netfilter|nf_conntrack)|fs\.nfs)", "modules stay loaded"),
    Allowed("loaded units", r"^(run-|user|session|apt-|dpkg-|systemd-)", "they come and go"),
)


def down(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(BIN / "vllm-cluster"), "down", str(cluster.description), *words]
    return subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """node-a is fresh. node-b has a life: Docker with a container, a firewall table, own lines."""
    lab = Lab.up(2, name=NAME)
    try:
        made = with_standin(tmp_path_factory.mktemp("removal"), lab)
        made.on("node-b", LIFE)
        yield made
    finally:
        lab.down()


LIFE = f"""
set -e
mkdir -p /etc/docker && printf '{{"debug":  false, "log-driver": "journald"}}' > {DAEMON}
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -qq -y --no-install-recommends docker.io rsync >/dev/null
echo '192.0.2.7 printer' >> /etc/hosts
echo 128 > /proc/sys/net/ipv4/tcp_max_syn_backlog
nft add table inet theirs; nft add chain inet theirs c; nft add rule inet theirs c tcp dport 99 drop
tar -c /usr/bin/sleep /lib/x86_64-linux-gnu/libc.so.6 /lib64/ld-linux-x86-64.so.2 2>/dev/null |
  docker import - theirs:1 >/dev/null
docker create --name theirs theirs:1 /usr/bin/sleep 9 >/dev/null
"""


@pytest.fixture(scope="module")
def before(bare: Cluster) -> dict[str, Any]:
    """Both hosts, whole, and what our own fingerprint says of them; deployed to afterwards."""
    found = {host.name: look(host) for host in bare.lab.hosts}
    found["prints"] = prints(bare)
    bare.apply()
    return found


def prints(cluster: Cluster) -> dict[str, Any]:
    return {
        host.name: parse(host.ssh("sh -s", stdin=script(WEIGHTS)).stdout.splitlines())
        for host in cluster.lab.hosts
    }


@pytest.mark.usefixtures("before")
def test_it_shows_what_goes_and_what_stays_and_changes_nothing(bare: Cluster) -> None:
    deployed = prints(bare)
    shown = down(bare, "--dry-run")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "vllm.service" in shown.stdout
    assert "--packages removes them" in shown.stdout
    assert "--no-keep-weights removes them" in shown.stdout
    refused = down(bare)
    assert refused.returncode == 1, "nobody said yes"
    assert not fingerprint.differences(deployed["node-a"], prints(bare)["node-a"])
    assert down(bare, "--host", "node-x").returncode == 2


@pytest.mark.usefixtures("before")
def test_what_somebody_changed_since_stays_and_is_named(bare: Cluster) -> None:
    bare.on("node-b", "echo '# mine' >> /etc/sysctl.d/99-vllm-cluster.conf")
    bare.on("node-b", "sed -i '1i 192.0.2.8 scanner' /etc/hosts")
    config = json.loads(bare.on("node-b", f"cat {DAEMON}")) | {"mtu": 1400}
    bare.on("node-b", f"cat > {DAEMON} <<'E'\n{json.dumps(config)}\nE")
    done = down(bare, "--host", "node-b", *EVERYTHING, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)["hosts"]["node-b"]
    kept = {each["what"]: each["why"] for each in [*told["keeps"], *told["kept"]]}
    assert "changed since" in kept["/etc/sysctl.d/99-vllm-cluster.conf"]
    bare.on("node-b", "test -e /etc/sysctl.d/99-vllm-cluster.conf")
    hosts = bare.on("node-b", "cat /etc/hosts")
    assert hosts.startswith("192.0.2.8 scanner\n")
    assert "vllm-cluster" not in hosts
    was = json.loads('{"debug": false, "log-driver": "journald"}')
    assert json.loads(bare.on("node-b", f"cat {DAEMON}")) == was | {"mtu": 1400}


def test_a_host_with_a_life_has_it_back(bare: Cluster, before: dict[str, Any]) -> None:
    bare.on("node-b", "rm /etc/sysctl.d/99-vllm-cluster.conf; sed -i 1d /etc/hosts")
    bare.on("node-b", f'printf \'{{"debug":  false, "log-driver": "journald"}}\' > {DAEMON}')
    assert bare.on("node-b", "docker ps -a --format '{{.Names}}'").split() == ["theirs"]
    docker = (
        Allowed("files", r"^/var/lib/(docker|containerd)/", "their Docker ran on"),
        Allowed("mounts", r"^/run/docker/netns/default$", "Docker keeps it once it was asked for"),
    )
    found = differences(before["node-b"], look(bare.lab.host("node-b")), (*ALLOWED, *docker))
    assert found == []


def test_killed_in_the_middle_the_next_one_ends_in_a_fresh_host(
    bare: Cluster, before: dict[str, Any]
) -> None:
    argv = [str(BIN / "vllm-cluster"), "down", str(bare.description), *EVERYTHING]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "packages, directories" in line:
                break
        time.sleep(1)
        process.kill()
    assert bare.on("node-a", "cat /etc/vllm-cluster/owned/journal"), "it was not through"
    done = down(bare, *EVERYTHING)
    assert done.returncode == 0, done.stdout + done.stderr
    found = differences(before["node-a"], look(bare.lab.host("node-a")), ALLOWED)
    assert found == []
    for host in ("node-a", "node-b"):
        assert bare.on(host, "ls -d /run/vllm-cluster* 2>/dev/null; true") == "", host
    assert "Beside lab.yaml remain: .secrets/lab" in done.stdout
    assert fingerprint.differences(before["prints"]["node-a"], prints(bare)["node-a"]) == []


@pytest.mark.usefixtures("before")
def test_a_second_one_finds_nothing(bare: Cluster) -> None:
    done = down(bare, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("nothing of this cluster is here") == 2


def test_packages_and_weights_that_stay_are_remembered(
    bare: Cluster, before: dict[str, Any]
) -> None:
    """And a deploy in between makes them no less ours."""
    bare.apply()
    assert "vllm.service" in bare.on("node-a", f"find {WEIGHTS}/.pins -type f")
    done = down(bare, "--yes")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bare.on("node-a", f"find {WEIGHTS} -name model.safetensors")
    assert bare.on("node-a", "dpkg-query -W -f '${Status}' docker.io") == "install ok installed"
    assert bare.on("node-a", "ls /etc/vllm-cluster").split() == ["owned"]
    assert bare.on("node-a", f"find {WEIGHTS}/.pins -type f") == "", "no unit uses them any more"
    done = down(bare, *EVERYTHING)
    assert done.returncode == 0, done.stdout + done.stderr
    found = differences(before["node-a"], look(bare.lab.host("node-a")), ALLOWED)
    assert found == []
