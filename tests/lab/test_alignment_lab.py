"""Hosts that differ: one table, the odd one named, and nothing stopped or started."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import standin
from tests.lab.conftest import with_standin
from tests.lab.harness import Cluster
from vllm_cluster.facts.alignment import VERSIONS
from vllm_cluster.plan import paths

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
ALIGN = "deploys/align.py"
BIN = "/usr/local/bin"

# nvidia-smi, nvidia-ctk and modinfo as far as they are asked; the first also for the loaded driver.
_SMI = r"""#!/bin/sh
case "$*" in
  *query-gpu*) for n in $(seq COUNT); do echo "NVIDIA A100-SXM4-80GB, 81920"; done ;;
  *) echo "| NVIDIA-SMI 570.124.06    Driver Version: 570.124.06    CUDA Version: CUDA     |" ;;
esac
"""


def gpu(cluster: Cluster, name: str, *, loaded: str, installed: str, count: int = 4) -> None:
    """Make a host of the lab look like one with GPUs."""
    host = cluster.lab.host(name)
    for program, text in (
        ("nvidia-smi", _SMI.replace("COUNT", str(count)).replace("Version: CUDA", "Version: 12.8")),
        ("nvidia-ctk", "#!/bin/sh\necho NVIDIA Container Toolkit CLI version 1.17.8\n"),
        ("modinfo", f"#!/bin/sh\necho {installed}\n"),
    ):
        host.ssh(f"cat > {BIN}/{program} && chmod 755 {BIN}/{program}", stdin=text)
    version = "/sys/module/nvidia/version"
    mount = "mountpoint -q /sys/module || mount -t tmpfs none /sys/module"
    cluster.on(name, f"{mount}; mkdir -p $(dirname {version}) && echo {loaded} > {version}")


@contextmanager
def restored(cluster: Cluster) -> Iterator[None]:
    """Put back what `gpu` and the tests changed."""
    try:
        yield
    finally:
        for host in cluster.lab.hosts:
            host.ssh(
                f"umount /sys/module 2>/dev/null; rm -f {BIN}/nvidia-* {BIN}/modinfo {BIN}/date;"
                "ip link set fabric0 mtu 1500; docker image rm stray 2>/dev/null"
            )


def running(cluster: Cluster) -> dict[str, str]:
    """The containers of every host with the moment of their start."""
    shape = "{{.Name}} {{.State.StartedAt}}"
    ask = f"docker inspect --format '{shape}' $(docker ps --quiet)"
    return {host.name: cluster.on(host.name, ask) for host in cluster.lab.hosts}


def stopped(cluster: Cluster, deploy: str = ALIGN) -> str:
    """The output of a run that the table stopped, after which everything runs as before."""
    before = running(cluster)
    done = cluster.pyinfra("-y", "--fail-percent", "0", deploy=deploy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert running(cluster) == before
    said = done.stdout + done.stderr
    assert len(re.findall(r"\[(node-[ab])\] refused: the hosts differ", said)) == 2, said
    return said


def row(said: str, title: str) -> str:
    found = re.search(rf"\[node-a\] ({title} .*)", said)
    assert found, said
    return found[1]


def test_hosts_that_agree_pass_and_the_table_is_shown_and_written(
    standins: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "table.json"
    done = standins.pyinfra("-y", "--data", f"align_json={file}", deploy=ALIGN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node-a, node-b" in row(done.stdout + done.stderr, "host")
    told = json.loads(file.read_text())
    assert told["problems"] == []
    for name in ("node-a", "node-b"):
        cells = {title: cell["text"] for title, cell in told["hosts"][name].items()}
        assert cells["kernel"] == standins.on(name, "uname -r").strip()
        assert cells["vLLM in the image"] == standin.VERSIONS["vllm"]
        assert cells["MTU on the fabric"] == "1500"
        assert cells["clock"] == "in step"


def test_another_mtu_on_one_host_stops_the_run_before_a_changed_unit_is_restarted(
    standins: Cluster, tmp_path: Path
) -> None:
    with restored(standins):
        standins.on("node-b", "ip link set fabric0 mtu 1400")
        changed = with_standin(
            tmp_path, standins.lab, lambda text: text.replace("max-num-seqs: 4", "max-num-seqs: 5")
        )
        (tmp_path / ".secrets").symlink_to(standins.inventory.parent / ".secrets")
        before = running(changed)
        # The whole deploy tries the ways between the hosts before it compares them.
        whole = changed.pyinfra("-y", "--fail-percent", "0")
        assert whole.returncode == 1, whole.stdout + whole.stderr
        assert running(changed) == before
        said = stopped(changed)
        assert re.search(r"!\s+1500\s+!1400", row(said, "MTU on the fabric"))
        assert "MTU on the fabric: node-b has 1400, not 1500. Set one MTU" in said


def test_an_image_that_one_host_lacks_is_named(standins: Cluster) -> None:
    image = standins.on("node-b", "docker image ls --quiet --no-trunc | sort -u").strip()
    standins.on("node-b", f"docker tag {image} keep && mv {VERSIONS} {VERSIONS}.kept")
    real = standins.on("node-b", "command -v docker").strip()
    # a docker that does not know the image, as after somebody's `docker image prune`
    stub = f'#!/bin/sh\ncase "$*" in "image inspect"*) exit 1 ;; esac\nexec {real} "$@"\n'
    try:
        host = standins.lab.host("node-b")
        host.ssh(f"cat > {BIN}/docker && chmod 755 {BIN}/docker", stdin=stub)
        said = stopped(standins)
        assert re.search(r"image: node-b has none, not [0-9a-f]{12}\. Run deploys/cluster", said)
    finally:
        standins.on("node-b", f"rm {BIN}/docker; mv {VERSIONS}.kept {VERSIONS}")
        standins.on("node-b", "docker rmi keep")


def test_an_image_with_another_vllm_than_declared_stops_every_host(
    standins: Cluster, tmp_path: Path
) -> None:
    other = with_standin(
        tmp_path, standins.lab, lambda text: text.replace("vllm: 0.32.0", "vllm: 0.33.0")
    )
    (tmp_path / ".secrets").symlink_to(standins.inventory.parent / ".secrets")
    said = stopped(other)
    assert "vLLM in the image: node-a, node-b have 0.32.0, not 0.33.0. Pin the image" in said


def test_damaged_weights_are_named(standins: Cluster) -> None:
    find = "find /var/lib/vllm-cluster/models -name manifest.json"
    manifest = standins.on("node-b", find).strip()
    standins.on("node-b", f"cp {manifest} /root/kept && echo >> {manifest}")
    try:
        said = stopped(standins)
        assert re.search(r"weights: node-b has [0-9a-f]{12}, not [0-9a-f]{12}\.", said)
    finally:
        standins.on("node-b", f"mv /root/kept {manifest}")


def test_a_clock_that_is_off_is_told_by_how_much(standins: Cluster) -> None:
    # One kernel, one clock: a `date` that is 90 s ahead stands in for a host's own.
    stub = "#!/bin/sh\ncase \"$*\" in +%s.%N) exec /bin/date -d '+90 seconds' +%s.%N ;; esac\n"
    with restored(standins):
        host = standins.lab.host("node-b")
        host.ssh(f"cat > {BIN}/date && chmod 755 {BIN}/date", stdin=stub + 'exec /bin/date "$@"\n')
        said = stopped(standins)
        off = re.search(r"clock: node-b has \+(\d+\.\d) s, not within 1 s", said)
        assert off
        assert abs(float(off[1]) - 90) < 5


def test_drivers_and_gpus_that_differ_are_told_each_with_its_fix(
    standins: Cluster, tmp_path: Path
) -> None:
    def edit(text: str) -> str:
        text = text.replace("kind: cpu", "kind: nvidia\n  model: A100-SXM4-80GB")
        return text.replace("gpus: 1", "gpus: 4").replace("tensor: 1", "tensor: 4")

    made = with_standin(tmp_path, standins.lab, edit)
    (tmp_path / ".secrets").symlink_to(standins.inventory.parent / ".secrets")
    with restored(standins):
        for name in ("node-a", "node-b"):
            gpu(made, name, loaded="570.124.06", installed="570.124.06")
        done = made.pyinfra("-y", deploy=ALIGN)
        assert done.returncode == 0, done.stdout + done.stderr
        gpu(made, "node-b", loaded="570.124.06", installed="570.133.07", count=3)
        said = stopped(made)
        assert "node-b has 570.133.07, not the loaded 570.124.06. Reboot node-b" in said
        assert "GPUs: node-b has 3, not 4. Look for a GPU that fell off the bus" in said


def test_a_host_that_failed_before_stops_the_others(standins: Cluster) -> None:
    key = f"{paths.SECRETS}/ray-token"
    # the file of a secret is in the way as a directory, so that a late step fails on one host
    standins.on("node-b", f"mv {key} /root/kept && mkdir {key}")
    before = running(standins)
    try:
        done = standins.pyinfra("-y")
    finally:
        standins.on("node-b", f"rmdir {key}; mv /root/kept {key}")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "answer: node-b has none" in said
    assert running(standins) == before
