"""The disk that both virtual machines start from: Debian with a kernel of its own, made once.

A raw ext4 file system without partitions, the kernel and its initial RAM disk beside it, in
`.cache/vm/<hash of the recipe>`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_cluster.lab.packages import Source, debian_sources
from vllm_cluster.lab.rootfs import ALONE

ROOT = Path(__file__).parents[2]
RELEASE = "bookworm"
SIZE_BYTES = 3 * 2**30
ADDRESSES = {"node-a": "10.78.0.11", "node-b": "10.78.0.12"}

PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "openssh-server", "sudo", "iproute2", "procps",
    "linux-image-cloud-amd64", "initramfs-tools", "e2fsprogs", "xfsprogs", "nfs-common",
    "nfs-kernel-server", "rsync", "nftables", "iputils-ping", "curl", "ca-certificates",
    "python3",
)  # fmt: skip

# They cost minutes under emulation and prove nothing here.
MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
    "e2scrub_reap.service", "fstrim.timer", "getty@tty1.service", "serial-getty@ttyS0.service",
    "systemd-pstore.service", "systemd-timesyncd.service", "nfs-blkmap.service",
    "systemd-networkd-wait-online.service",
)  # fmt: skip


def mac(name: str) -> str:
    """The MAC address of a machine, by which the image knows which one it is."""
    return "52:54:00:76:6d:" + ADDRESSES[name].rsplit(".", 1)[1].zfill(2)


@dataclass(frozen=True)
class Image:
    """What a machine boots from, and the key that lets in."""

    disk: Path
    kernel: Path
    initrd: Path
    key: Path
    host_key: Path


def ensure() -> Image:
    """The image, out of the cache or made now (two to four minutes)."""
    sources = debian_sources(RELEASE)
    recipe = json.dumps(
        [RELEASE, SIZE_BYTES, ADDRESSES, PACKAGES, MASKED, _FILES, _SETUP,
         [asdict(source) for source in sources]]
    )  # fmt: skip
    place = ROOT / ".cache" / "vm" / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    image = Image(
        place / "root.img", place / "vmlinuz", place / "initrd", place / "key", place / "host_key"
    )
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.disk.exists():
            _build(image, place, sources)
    return image


_FILES = {
    "etc/fstab": "/dev/vda / ext4 rw,noatime 0 1\n",
    "etc/resolv.conf": "",
    "etc/machine-id": "",
    "etc/sudoers.d/ops": "ops ALL=(ALL) NOPASSWD: ALL\n",
    "etc/ssh/sshd_config.d/vm.conf": "UseDNS no\nPasswordAuthentication no\nMaxStartups 100\n",
    "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=persistent\nForwardToConsole=no\n",
    "etc/initramfs-tools/modules": "virtio_blk\nvirtio_pci\nvirtio_net\next4\n",
    **{
        f"etc/systemd/network/{name}.network": (
            f"[Match]\nMACAddress={mac(name)}\n[Network]\nAddress={address}/24\n"
            "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
        )
        for name, address in ADDRESSES.items()
    },
}
_SETUP = (
    "useradd --create-home --shell /bin/bash ops",
    "install -d -m 0700 -o ops -g ops /home/ops/.ssh && install -d -m 0700 /root/.ssh",
    "rm -f /etc/ssh/ssh_host_* /etc/hostname",
    "systemctl enable --quiet systemd-networkd.service ssh.service",
    # the server of the tests is switched on by what is tested
    "systemctl disable --quiet nfs-server.service nfs-kernel-server.service || true",
    "systemctl mask --quiet " + " ".join(MASKED),
)


def run(argv: list[str], **extra: str) -> None:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, input=extra.get("stdin")
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}:\n{(done.stderr or done.stdout)[-3000:]}")


def unpack(
    tree: Path, packages: Sequence[str], files: Mapping[str, str], sources: Sequence[Source]
) -> None:
    """A minimal Debian at `tree`, in the place of what lies there, with `packages` and `files`."""
    if tree.exists():
        shutil.rmtree(tree)
    lines = "\n".join(f"deb {s.uri} {s.suite} {s.components}" for s in sources)
    run(
        [*ALONE, "mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory",
         "--skip=output/dev", f"--include={','.join(packages)}",
         '--aptopt=APT::Install-Recommends "false"',
         "--keyring=/usr/share/keyrings", RELEASE, str(tree), "-"],
        stdin=lines,
    )  # fmt: skip
    for name, text in files.items():
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def pack(image: Image, tree: Path, size_bytes: int) -> None:
    """Make kernel, initrd and disk of `tree`, which is gone afterwards; the disk last."""
    run(["chroot", str(tree), "update-initramfs", "-u", "-k", "all"])
    shutil.copy(next((tree / "boot").glob("vmlinuz-*")), image.kernel)
    shutil.copy(next((tree / "boot").glob("initrd.img-*")), image.initrd)
    half = image.disk.with_name("half-made.img")
    half.unlink(missing_ok=True)
    run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(half), f"{size_bytes // 1024}k"])
    os.sync()
    half.rename(image.disk)
    shutil.rmtree(tree)


def _build(image: Image, place: Path, sources: list[Source]) -> None:
    tree = place / "tree"
    print(f"making the virtual machines' root file system in {place}", file=sys.stderr)
    unpack(tree, PACKAGES, _FILES, sources)
    (tree / "etc/sudoers.d/ops").chmod(0o440)
    for command in _SETUP:
        run(["chroot", str(tree), "sh", "-ec", command])
    _keys(image, tree)
    pack(image, tree, SIZE_BYTES)


def _keys(image: Image, tree: Path) -> None:
    """One client key, and one host key for both machines: tests know them in advance."""
    for key in (image.key, image.host_key):
        key.unlink(missing_ok=True)
        key.with_suffix(".pub").unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "vm", "-f", str(key)])
    for home in ("root", "home/ops"):
        file = tree / home / ".ssh/authorized_keys"
        shutil.copy(image.key.with_suffix(".pub"), file)
        file.chmod(0o600)
        owner = (tree / home).stat()
        os.chown(file, owner.st_uid, owner.st_gid)
    inside = tree / "etc/ssh/ssh_host_ed25519_key"
    shutil.copy(image.host_key, inside)
    inside.chmod(0o600)
    shutil.copy(image.host_key.with_suffix(".pub"), inside.with_suffix(".pub"))


if __name__ == "__main__":
    print(ensure().disk)
