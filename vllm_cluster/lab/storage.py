"""A host's disk: its own layer over the shared root file system, and what must differ per host."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from vllm_cluster.lab import disks, snapshots
from vllm_cluster.lab import layout as names
from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.packages import Source, date_options
from vllm_cluster.lab.proc import run


def mounts_under(directory: Path) -> list[str]:
    """Mount points at or below a folder, innermost first."""
    inside = str(directory)
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point == inside or point.startswith(inside + "/"):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def host_key(host: HostLayout) -> Path:
    """The host's public SSH key; there is none when its disk is not whole."""
    return host.directory / "host_key.pub"


def mount_root(host: HostLayout, lower: Path) -> None:
    """Mount the host's file system; nothing when it is mounted.

    `volatile` leaves out syncing: without it an unmount waits until everything that anybody
    wrote to this machine's disk is written out. overlayfs then wants to be told that a layer
    which was mounted before may be used again (Linux, Documentation/filesystems/overlayfs.rst).
    """
    if mounts_under(host.root):
        return
    used_before = host.work / "work/incompat"
    if used_before.exists():
        shutil.rmtree(used_before)
    options = f"lowerdir={lower},upperdir={host.upper},workdir={host.work},volatile"
    try:
        run(["mount", "-t", "overlay", host.namespace, "-o", options, str(host.root)])
    except LabError as error:
        raise LabError(
            f"{host.name}: overlayfs does not mount on {host.directory}; "
            f"VLLM_CLUSTER_LAB_ROOT can name a folder on ext4, xfs or btrfs\n{error}"
        ) from error


def unmount(directory: Path) -> int:
    """Unmount all at or below a folder; how many there were."""
    points = mounts_under(directory)
    for point in points:
        run(["umount", point])
    return len(points)


def remove_disk(host: HostLayout) -> None:
    """Take the host's file system, stores and further disks away."""
    host_key(host).unlink(missing_ok=True)
    unmount(host.directory)
    disks.remove(host)
    snapshots.remove(host)
    for path in (host.upper, host.work, host.root, *host.stores.values()):
        if path.exists():
            shutil.rmtree(path)


def make_disk(layout: Layout, host: HostLayout, lower: Path, sources: list[Source]) -> None:
    """A bare OS with an identity of its own: name, machine ID, SSH host key."""
    for path in (host.upper, host.work, host.root, *host.stores.values()):
        path.mkdir(parents=True, exist_ok=True)
    mount_root(host, lower)
    root = host.root
    key = root / "etc/ssh/ssh_host_ed25519_key"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", str(key)])
    (root / "etc/machine-id").write_text(secrets.token_hex(16) + "\n")
    (root / "etc/hostname").write_text(f"{host.name}\n")
    (root / "etc/resolv.conf").write_text("# no name server: this network has none\n")
    # Debian's installer writes the second line; it makes a host's own name a loopback address
    (root / "etc/hosts").write_text(
        f"127.0.0.1\tlocalhost\n127.0.1.1\t{host.name}\n\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
    )
    public = layout.key.with_suffix(".pub").read_text()
    for home in ("root", "home/ops"):
        file = root / home / ".ssh/authorized_keys"
        file.write_text(public)
        file.chmod(0o600)
        owner = (root / home).stat()
        os.chown(file, owner.st_uid, owner.st_gid)
    _configure_apt(root, sources)
    # Last, and in one rename: that it is there says that the disk is whole, and others read it.
    new = host_key(host).with_suffix(".new")
    shutil.copy(key.with_suffix(".pub"), new)
    new.rename(host_key(host))


def _configure_apt(root: Path, sources: list[Source]) -> None:
    keyring = "usr/share/keyrings/debian-archive-keyring.gpg"
    signed = f"[signed-by=/{keyring}] " if (root / keyring).exists() else ""
    lines = [f"deb {signed}{s.plain_uri} {s.suite} {s.components}" for s in sources]
    (root / "etc/apt/sources.list").write_text("\n".join(lines) + "\n")
    options = {
        "Acquire::http::Proxy": f"http://{names.CONTROL_ADDRESS}:{names.APT_PORT}",
        "Acquire::Languages": "none",
        **date_options(),
    }
    text = "".join(f'{name} "{value}";\n' for name, value in options.items())
    (root / "etc/apt/apt.conf.d/90lab").write_text(text)
    # a lab's disk need not outlive a power cut of this machine; fsync costs most of an install
    (root / "etc/dpkg/dpkg.cfg.d/lab").write_text("force-unsafe-io\n")
