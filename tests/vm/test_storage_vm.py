"""NFS and block devices by UUID, on kernels of their own: first run, power cut, missing disk.

One story in order, since a boot under emulation takes minutes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm.machine import Machine, machines
from tests.vm.root_image import ROOT, ensure

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]
MIB = 2**20
OLD_UUID = "6d1f7f5e-3a52-4c3a-9a53-0f3f4f1b7c11"
NAMESPACE = "vc-vm-test"

# A service as the cluster's own: it needs the mount, and starts when it is there.
_NEEDS = """[Unit]
RequiresMountsFor={where}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/touch /run/started-{name}
[Install]
WantedBy=multi-user.target
"""


@dataclass
class Pair:
    """The machines and the description of them."""

    machines: dict[str, Machine]
    inventory: Path

    def pyinfra(self, *options: str, deploy: str = "deploys/storage.py") -> tuple[int, str]:
        """Exit code and output of a run."""
        program = Path(sys.executable).with_name("pyinfra")
        done = subprocess.run(
            [program, "-y", *options, str(self.inventory), deploy],
            cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both machines up: node-a with a blank disk, node-b with a blank one and one with data."""
    folder = tmp_path_factory.mktemp("vm")
    with machines(ensure(), folder, NAMESPACE) as made:
        made["node-a"].add_disk("fast-a", 400 * MIB)
        made["node-b"].add_disk("fast-b", 400 * MIB)
        old = made["node-b"].add_disk("old-b", 64 * MIB)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-U", OLD_UUID, str(old.file)], check=True)
        boot(*made.values())
        yield Pair(made, describe(folder, made))


def boot(*every: Machine) -> None:
    for machine in every:
        machine.power_on()
    with ThreadPoolExecutor() as pool:
        list(pool.map(Machine.await_ssh, every))


def describe(folder: Path, made: dict[str, Machine], more: str = "") -> Path:
    """An inventory whose disks are those of the machines."""
    _archive(folder / "image.tar")
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}\n")
    hosts = "".join(
        f"  {machine.name}: {{address: {machine.address}, gpus: 1}}\n" for machine in made.values()
    )
    (folder / "vm.yaml").write_text(f"""
cluster: vm
ssh: {{user: ops, config_file: ssh_config, known_hosts_file: known_hosts, host_keys: "yes",
      key: {made["node-a"].image.key}}}
hosts:
{hosts}
head: node-a
gpu: {{kind: cpu}}
network: {{fabric: 10.78.0.0/24, api_from: [10.78.0.0/24]}}
parallel: {{tensor: 1, pipeline: 2}}
image: {{reference: "vm:1", archive: image.tar, vllm: 0.32.0, ray: 2.60.0}}
model: {{name: tiny, source: model, directory: tiny}}
memory: {{shm: 256MiB, object_store: 80MiB}}
limits: {{nofile: 16384}}
storage:
  image: 0
  disks:
    /srv/fast:
      format: ext4
      devices:
        node-a: /dev/disk/by-id/virtio-fast-a
        node-b: /dev/disk/by-id/virtio-fast-b
    /srv/old:
      devices: {{node-b: UUID={OLD_UUID}}}
  nfs:
    /mnt/models: {{server: node-a, export: /srv/fast/models}}
{more}""")
    (folder / "vm.py").write_text((ROOT / "inventories" / "lab.py").read_text()
                                  .replace("lab.yaml", "vm.yaml"))  # fmt: skip
    return folder / "vm.py"


def _archive(path: Path) -> None:
    config = b'{"architecture": "amd64"}'
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": ["vm:1"], "Layers": []}]).encode()
    with tarfile.open(path, "w") as tar:
        for member, content in ((name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def source_at(machine: Machine, where: str) -> list[str]:
    """Source, type and UUID of what is mounted there, as the kernel and blkid tell."""
    return machine.ssh(f"findmnt -nro SOURCE,FSTYPE,UUID --mountpoint {where}").split()


def test_blank_disks_are_made_and_mounted_by_uuid_and_shared(pair: Pair) -> None:
    a, b = pair.machines["node-a"], pair.machines["node-b"]
    code, said = pair.pyinfra("--fail-percent", "0")
    assert code == 0, said
    for machine in (a, b):
        device, kind, uuid = source_at(machine, "/srv/fast")
        assert kind == "ext4"
        serial = f"fast-{machine.name[-1]}"
        real = machine.ssh(f"readlink -f /dev/disk/by-id/virtio-{serial}")
        assert device == real
        unit = machine.ssh("cat /etc/systemd/system/srv-fast.mount")
        assert f"What=/dev/disk/by-uuid/{uuid}" in unit
        assert machine.ssh("systemctl is-enabled srv-fast.mount") == "enabled"
    assert source_at(b, "/srv/old")[2] == OLD_UUID
    assert source_at(b, "/mnt/models")[:2] == ["10.78.0.11:/srv/fast/models", "nfs4"]
    a.ssh("echo from-a > /srv/fast/models/file")
    assert a.ssh("cat /mnt/models/file") == "from-a", "the server sees the same path"
    assert b.ssh("cat /mnt/models/file") == "from-a"
    assert b.ask("touch /mnt/models/other") is None, "clients read"


def test_the_second_run_changes_nothing_and_takes_few_commands(pair: Pair) -> None:
    code, said = pair.pyinfra("-vv")
    assert code == 0, said
    assert "Grand total" in said
    total = re.search(r"Grand total +(\d+) +(\S+) +(\S+) +(\d+)", said)
    assert total, said
    assert (total[2], total[3]) == ("-", "-"), said
    commands = len(re.findall(r"^\[node-a\] >>> ", said, re.MULTILINE))
    assert commands <= 10, commands


def test_a_mount_that_somebody_took_away_comes_back(pair: Pair) -> None:
    b = pair.machines["node-b"]
    b.ssh("umount /mnt/models /srv/old; systemctl disable --quiet srv-old.mount; "
          "mount -o remount,atime /srv/fast")  # fmt: skip
    code, said = pair.pyinfra("--fail-percent", "0")
    assert code == 0, said
    assert source_at(b, "/srv/old")[2] == OLD_UUID
    assert b.ssh("cat /mnt/models/file") == "from-a"
    assert b.ssh("systemctl is-enabled srv-old.mount") == "enabled"
    assert "noatime" in b.ssh("findmnt -nro OPTIONS --mountpoint /srv/fast").split(",")


def test_a_client_takes_a_model_from_its_share(pair: Pair, tmp_path: Path) -> None:
    a, b = pair.machines["node-a"], pair.machines["node-b"]
    a.ssh("mkdir /srv/fast/models/m && cd /srv/fast/models/m && echo '{}' > config.json && "
          f"head -c {20 * MIB + 7} /dev/urandom > m.safetensors && sync")  # fmt: skip
    b.await_true("the model on the share", "test -e /mnt/models/m/m.safetensors", 120)
    old = "model: {name: tiny, source: model, directory: tiny}"
    new = "model: {name: m, directory: org/m, revision: v1, sources: [{nfs: /mnt/models/m}]}"
    text = pair.inventory.with_suffix(".yaml").read_text()
    assert old in text
    # The machines' own disk is smaller than what stays free by default.
    text = text.replace(old, new).replace("  image: 0\n", "  image: 0\n  reserve: 64MiB\n")
    for name in ("ssh_config", "known_hosts", "image.tar"):
        (tmp_path / name).symlink_to(pair.inventory.parent / name)
    (tmp_path / "vm.yaml").write_text(text)
    program = Path(sys.executable).with_name("vllm-cluster")
    # Not the server, which sees the directory itself.
    done = subprocess.run(
        [program, "weights", "place", str(tmp_path / "vm.yaml"), "--host", "node-b"],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node-b gets the model from /mnt/models/m, an NFS share" in done.stderr
    placed = b.ssh("cd /var/lib/vllm-cluster/models/org--m/v1/ && sha256sum *")
    assert placed == a.ssh("cd /srv/fast/models/m && sha256sum *")


def test_a_disk_with_data_where_a_blank_one_was_declared_is_left_as_it_is(
    pair: Pair, tmp_path: Path
) -> None:
    b = pair.machines["node-b"]
    b.ssh("umount /srv/old; sync")
    disk = next(disk for disk in b.disks if disk.serial == "old-b")
    before = hashlib.sha256(disk.file.read_bytes()).hexdigest()
    text = pair.inventory.with_suffix(".yaml").read_text()
    wrong = text.replace(f"UUID={OLD_UUID}", disk.by_id).replace(
        "    /srv/old:\n", "    /srv/old:\n      format: xfs\n"
    )
    assert wrong.count("format:") == 2
    folder = tmp_path
    for name in ("ssh_config", "known_hosts", "image.tar", "model", "vm.py"):
        (folder / name).symlink_to(pair.inventory.parent / name)
    (folder / "vm.yaml").write_text(wrong)
    code, said = Pair(pair.machines, folder / "vm.py").pyinfra("--fail-percent", "0")
    assert code == 1
    assert f"refused: {disk.by_id} shall be blank for /srv/old, but holds ext4" in said
    assert f"UUID={OLD_UUID}" in said
    assert hashlib.sha256(disk.file.read_bytes()).hexdigest() == before


def test_a_clock_that_drifted_on_one_machine_is_told(pair: Pair) -> None:
    b = pair.machines["node-b"]
    b.ssh("date --set '+100 seconds'")
    code, said = pair.pyinfra(deploy="deploys/align.py")
    b.ssh("date --set '-100 seconds'")
    assert code == 1
    off = re.search(r"clock: node-b has \+(\d+\.\d) s, not within 1 s of the others", said)
    assert off, said
    assert abs(float(off[1]) - 100) < 10


def test_after_a_power_cut_a_client_waits_for_its_server_and_does_without_a_dead_disk(
    pair: Pair,
) -> None:
    a, b = pair.machines["node-a"], pair.machines["node-b"]
    for name, where in (("share", "/mnt/models/x"), ("disk", "/srv/old/x")):
        unit = _NEEDS.format(where=where, name=name)
        b.ssh(f"cat > /etc/systemd/system/needs-{name}.service <<'X'\n{unit}X\n"
              f"systemctl enable --quiet needs-{name}.service; sync")  # fmt: skip
    a.power_cut()
    b.power_cut()
    dead = next(disk for disk in b.disks if disk.serial == "old-b")
    b.disks.remove(dead)
    boot(b)
    b.await_true("its own disk", "mountpoint -q /srv/fast", 240)
    waiting = "systemctl show -P ActiveState mnt-models.mount | grep -qx activating"
    b.await_true("the share waiting for its server", waiting, 240)
    b.await_true("users let in meanwhile", "test ! -e /run/nologin", 120)
    b.await_true("the dead disk awaited", "systemctl list-jobs | grep -q srv-old.mount", 300)
    assert b.ask("mountpoint -q /srv/old") is None
    assert b.ask("ls /run/started-*") is None, "a unit started without its mount"
    boot(a)
    b.await_true("the share", "mountpoint -q /mnt/models", 300)
    assert b.ssh("cat /mnt/models/file") == "from-a"
    b.await_true("the unit that needs the share", "test -e /run/started-share", 120)
    assert b.ask("test -e /run/started-disk") is None


def test_a_disk_that_died_is_an_error_of_the_next_run(pair: Pair) -> None:
    b = pair.machines["node-b"]
    code, said = pair.pyinfra()
    assert code == 1
    assert f"[node-b] refused: no file system with UUID {OLD_UUID}, which /srv/old needs" in said
    assert b.ssh("find /srv/old -mindepth 1") == "", "nothing was written beneath"
