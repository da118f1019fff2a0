"""The bare server that every host starts as: a Debian root file system, made once, read-only."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.packages import Source, debian_sources, download_options

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "sudo",
    "iproute2",
    "nftables",
    "curl",
    "procps",
    "kmod",
    "e2fsprogs",
    "ca-certificates",
    "iputils-ping",
)
"""What a server has at the least. No python3: pyinfra needs none, and neither may the steps."""

_MASKED = (
    # they start at random times and hold apt's lock
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    # the address is set from outside, as by a provider's firmware; there is no terminal
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-networkd-wait-online.service",
    "console-getty.service",
    "getty@tty1.service",
    "systemd-pstore.service",
)

_FILES = {
    "etc/systemd/journald.conf.d/size.conf": (
        "[Journal]\nStorage=persistent\nSystemMaxUse=64M\nRuntimeMaxUse=16M\n"
        "RateLimitIntervalSec=0\n"
    ),
    "etc/ssh/sshd_config.d/lab.conf": (
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n"
        "MaxStartups 100\nMaxSessions 100\n"
    ),
    "etc/sudoers.d/ops": "ops ALL=(ALL) NOPASSWD: ALL\n",
    "etc/machine-id": "",
    "etc/fstab": "",
}

_SETUP = (
    "useradd --create-home --shell /bin/bash ops",
    "install -d -m 0700 /root/.ssh && install -d -m 0700 -o ops -g ops /home/ops/.ssh",
    "install -d -m 2755 -g systemd-journal /var/log/journal",
    "rm -f /etc/apt/apt.conf.d/99mmdebstrap /etc/ssh/ssh_host_* /etc/hostname "
    "/etc/resolv.conf /var/lib/dbus/machine-id",
    "systemctl mask --quiet " + " ".join(_MASKED),
)


# What mmdebstrap mounts in a tree goes with it, also when it is killed: left there, no later one
# could remove the tree.
ALONE = ("unshare", "--mount", "--propagation=private")


def recipe(release: str, sources: list[Source]) -> str:
    """Everything the root file system is made of, as text: its hash is the cache's key."""
    parts = [release, [s.__dict__ for s in sources], PACKAGES, _FILES, _SETUP]
    return json.dumps(parts, indent=1, sort_keys=True)


def _build(into: Path, release: str, sources: list[Source], log: Path, lock: int) -> None:
    lines = [f"deb {s.uri} {s.suite} {s.components}" for s in sources]
    argv = [*ALONE, "mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory"]
    argv += ["--skip=output/dev", f"--include={','.join(PACKAGES)}"]
    argv += [f"--aptopt={option}" for option in download_options()]
    argv += ["--keyring=/usr/share/keyrings", release, str(into), "-"]
    with log.open("w") as out:
        done = subprocess.run(
            argv,
            input="\n".join(lines),
            stdout=out,
            stderr=out,
            text=True,
            check=False,
            pass_fds=[lock],  # it keeps the lock, also when this process is killed meanwhile
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise LabError(f"mmdebstrap failed (all of it: {log}):\n{tail}")
    for path, text in _FILES.items():
        file = into / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (into / "etc/sudoers.d/ops").chmod(0o440)
    for command in _SETUP:
        argv = ["chroot", str(into), "sh", "-ec", command]
        step = subprocess.run(argv, capture_output=True, text=True, check=False)
        if step.returncode != 0:
            raise LabError(f"in the new root file system, {command!r} failed:\n{step.stderr}")


def ensure(cache: Path, release: str, say: Callable[[str], None]) -> Path:
    """The root file system of a release, out of the cache or made now (about a minute, 0.4 GB).

    Its folder is named by the hash of its recipe, so a changed recipe makes a new one.
    """
    sources = debian_sources(release)
    text = recipe(release, sources)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    place = cache / "rootfs" / key
    place.mkdir(parents=True, exist_ok=True)
    root = place / "root"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.is_dir():
            say(f"root file system {release}: cached in {place}")
            return root
        say(f"root file system {release}: making it with mmdebstrap, once, into {place}")
        began = time.monotonic()
        half = place / "half-made"
        if half.exists():
            shutil.rmtree(half)
        (place / "recipe.json").write_text(text + "\n")
        _build(half, release, sources, place / "build.log", lock.fileno())
        os.sync()  # a cut during the write-out must not leave a root that looks complete
        half.rename(root)
        say(f"root file system {release}: made in {time.monotonic() - began:.0f} s")
    return root
