"""A cloud image becomes a host by its seed, unattended: a virtual machine and a CIDATA image."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator

import pytest

from tests.vm import cloud_image
from tests.vm.machine import Disk, Machine, machines
from tests.vm.root_image import ADDRESSES, ROOT, mac
from vllm_cluster.commands.seed import seed_of
from vllm_cluster.rebuild.known_hosts import Place, replace
from vllm_cluster.seed import host_key, put
from vllm_cluster.spec import load

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600)]
NAMESPACE = "vc-vm-seed"
MIB = 2**20
HOST = "node-b"

_INSTALL = """
install:
  system: debian-12
  user: ops
  host_key: seed
  time_zone: Europe/Oslo
  hosts:
    node-b:
      disk: /dev/disk/by-id/virtio-os
      cards: [{{mac: "{mac}", address: {address}/24}}]
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The machine with its seed and a blank disk plugged in, started and never touched."""
    folder = tmp_path_factory.mktemp("seed")
    key = folder / "key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "desk", "-f", str(key)]
    subprocess.run(argv, check=True)
    text = (ROOT / "inventories/lab.yaml").read_text().split("\nhosts:")[0].split("\nssh:")[0]
    rest = "\nhosts:" + (ROOT / "inventories/lab.yaml").read_text().split("\nhosts:")[1]
    rest = rest.replace("10.77.0.", "10.78.0.")
    file = folder / "vm.yaml"
    file.write_text(
        f"{text}\nssh: {{user: ops, key: {key}}}\n{rest}"
        + _INSTALL.format(mac=mac(HOST), address=ADDRESSES[HOST])
    )
    cluster = load(file)
    made, _ = seed_of(cluster, HOST, "cloud-init")
    put.iso(made, folder / "seed.iso")
    image = dataclasses.replace(cloud_image.ensure(), key=key, host_key=folder / "host_key")
    pair = host_key.kept(cluster, HOST)
    assert pair is not None
    image.host_key.with_suffix(".pub").write_text(pair.public + "\n")
    with machines(image, folder, NAMESPACE) as both:
        one = both[HOST]
        one.user = "ops"
        one.disks.append(Disk(folder / "seed.iso", "seed"))
        one.add_disk("data", 8 * MIB)
        one.power_on()
        one.await_ssh()
        yield one


def test_ssh_knows_it_before_the_first_connection(machine: Machine) -> None:
    """`await_ssh` came through under StrictHostKeyChecking with the key that the seed carried."""
    assert "StrictHostKeyChecking yes" in (machine.folder / "ssh_config").read_text()
    known = machine.folder / "known_hosts"
    other = machine.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    before = known.read_text()
    replace(Place(known, (machine.address,)), " ".join(
        other.with_suffix(".pub").read_text().split()[:2]))  # fmt: skip
    try:
        assert machine.ask("true") is None, "any key would have done"
    finally:
        known.write_text(before)


def test_it_is_what_the_seed_says(machine: Machine) -> None:
    machine.await_true("cloud-init's end", "test -s /run/cloud-init/result.json", 1800)
    assert "status: done" in machine.ssh("cloud-init status --long || true")
    assert machine.ssh("hostname") == HOST
    assert machine.ssh(f"getent ahostsv4 {HOST}").split()[0] == "127.0.1.1"
    assert machine.ssh("readlink -f /etc/localtime").endswith("Europe/Oslo")
    shown = machine.ssh("ip -o -4 address show scope global")
    assert f"{machine.address}/24" in shown
    assert "DHCP" not in shown
    assert machine.ssh("stat -c %a /etc/ssh/ssh_host_ed25519_key") == "600"
    assert machine.ssh("ls /etc/ssh/ssh_host_*_key") == "/etc/ssh/ssh_host_ed25519_key"


def test_the_user_has_root_and_no_password(machine: Machine) -> None:
    assert machine.ssh("id -un") == "root", "through sudo -n"
    for user in ("ops", "root"):
        assert machine.ssh(f"passwd --status {user}").split()[1] == "L"
    assert "passwordauthentication no" in machine.ssh("sshd -T")


def test_the_data_disk_is_as_blank_as_it_was(machine: Machine) -> None:
    data = next(disk for disk in machine.disks if disk.serial == "data")
    assert machine.ssh(f"blkid {data.by_id} || echo blank") == "blank"
    assert data.file.read_bytes() == bytes(8 * MIB)
