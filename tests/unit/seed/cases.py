"""A description with an install section, for tests of seeds."""

from __future__ import annotations

from pathlib import Path

from vllm_cluster.seed.make import Seed, make
from vllm_cluster.seed.values import HostKey, Kind, Values, values
from vllm_cluster.spec import Cluster, loads

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVpkcwEpJuvxoUIXDGDLFVrKHCcTuIr9RUHPGkUXGkI desk"
DISK = "/dev/disk/by-id/nvme-Samsung_SSD_980_S64DNX0R"
UUID = "6d1f7f5e-3a52-4c3a-9a53-0f3f4f1b7c11"
HOST_KEY = HostKey(
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\n", KEY
)
SYSTEMS: dict[str, Kind] = {
    "ubuntu-22.04": "autoinstall", "ubuntu-24.04": "autoinstall",
    "debian-12": "preseed", "debian-13": "preseed",
}  # fmt: skip


def section(system: str, more: str = "", cards: str = "") -> str:
    """The YAML of an install section, after that of the example."""
    cards = cards or (
        "        - {mac: '52:54:00:76:6D:12', address: 192.168.1.11/24, gateway: 192.168.1.1, "
        "dns: [192.168.1.1, 9.9.9.9], mtu: 9000}\n"
        "        - {name: enp2s0, address: 10.0.0.11/24}\n"
    )
    return (
        f"install:\n  system: {system}\n  authorized_keys: ['{KEY}']\n{more}"
        f"  hosts:\n    node-b:\n      disk: {DISK}\n      cards:\n{cards}"
    )


def cluster(system: str = "debian-12", more: str = "", cards: str = "") -> Cluster:
    """The example with this system to install on node-b, whose data lies on another disk."""
    storage = f"storage: {{disks: {{/data: {{devices: {{node-b: UUID={UUID}}}}}}}}}\n"
    return loads(PROD.read_text() + storage + section(system, more, cards), PROD)


def seed(kind: Kind, system: str, more: str = "", *, key: bool = False) -> tuple[Seed, Values]:
    """node-b's seed and what it was made of."""
    told = values(
        cluster(system, more), "node-b", kind, host_key=HOST_KEY if key else None,
        kernel="6.1.0-28-amd64",
    )  # fmt: skip
    return make(kind, told), told
