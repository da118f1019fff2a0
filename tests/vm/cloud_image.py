"""A cloud image: Debian with cloud-init that nobody has told anything yet, made once.

No user, no address, no SSH host key: all of that comes from a seed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from tests.vm.root_image import MASKED, RELEASE, ROOT, Image, pack, run, unpack
from vllm_cluster.lab.packages import Source, debian_sources

SIZE_BYTES = 3 * 2**30
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "openssh-server", "sudo", "iproute2", "procps",
    "linux-image-cloud-amd64", "initramfs-tools", "e2fsprogs", "cloud-init", "netplan.io",
    "cloud-guest-utils", "locales", "tzdata",
)  # fmt: skip
_FILES = {
    "etc/fstab": "/dev/vda / ext4 rw,noatime 0 1\n",
    "etc/machine-id": "",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/initramfs-tools/modules": "virtio_blk\nvirtio_pci\nvirtio_net\next4\nisofs\n",
    # Asking the networks of a dozen clouds takes minutes and proves nothing here.
    "etc/cloud/cloud.cfg.d/90-test.cfg": "datasource_list: [NoCloud, None]\n",
}
_SETUP = (
    "rm -f /etc/ssh/ssh_host_* /etc/hostname",
    "systemctl enable --quiet systemd-networkd.service ssh.service",
    "systemctl mask --quiet " + " ".join(MASKED),
)


def ensure() -> Image:
    """The image, out of the cache or made now (minutes). A seed brings its keys."""
    sources = debian_sources(RELEASE)
    recipe = json.dumps(
        [RELEASE, SIZE_BYTES, PACKAGES, _FILES, _SETUP, [asdict(s) for s in sources]]
    )
    place = ROOT / ".cache" / "vm" / f"cloud-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    place.mkdir(parents=True, exist_ok=True)
    image = Image(
        place / "root.img", place / "vmlinuz", place / "initrd", place / "key", place / "host_key"
    )
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.disk.exists():
            _build(image, place, sources)
    return image


def _build(image: Image, place: Path, sources: list[Source]) -> None:
    tree = place / "tree"
    unpack(tree, PACKAGES, _FILES, sources)
    for command in _SETUP:
        run(["chroot", str(tree), "sh", "-ec", command])
    pack(image, tree, SIZE_BYTES)


if __name__ == "__main__":
    print(ensure().disk)
