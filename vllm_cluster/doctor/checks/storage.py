"""Disks and mounts: room, writable, answering."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.facts.doctor.model import Disk, HostFacts
from vllm_cluster.plan import HostPlan, paths

# File systems that wait for a server; a disk of the host's own may be slow.
_REMOTE = re.compile(
    r"(nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|glusterfs|9p|virtiofs|fuse(blk|\..+)?)"
)
# Below this Ray and Docker begin to fail in ways that name no disk; of a small partition, below
# a tenth of it.
FULL_BYTES, FULL_SHARE = 2**30, 0.1
FEW_INODES = 1000
LOW_BYTES, LOW_SHARE = 5 * 2**30, 0.2


def full(case: Case) -> Iterator[Finding]:
    """File systems without room, each told once, with what may go."""
    for host, facts in case.seen():
        told: set[str] = set()
        for disk in facts.disks.values():
            if not disk.size_bytes or disk.mount in told:
                continue
            inodes = bool(disk.inodes) and disk.free_inodes < FEW_INODES
            free = disk.free_bytes
            if free < min(FULL_BYTES, FULL_SHARE * disk.size_bytes) or inodes:
                told.add(disk.mount)
                yield _full(host.name, facts, disk, inodes=inodes)
            elif free < min(LOW_BYTES, LOW_SHARE * disk.size_bytes):
                told.add(disk.mount)
                yield Finding(
                    "host.disk-low", "host", host.name,
                    expected=f"room on {disk.mount}, which holds {disk.path}",
                    found=f"{_gib(disk.free_bytes)} free",
                    fix=by_hand(f"Free some of {disk.mount} on {host.name} before it is full"),
                    severity="warning",
                )  # fmt: skip


def _full(host: str, facts: HostFacts, disk: Disk, *, inodes: bool) -> Finding:
    left = f"{disk.free_inodes} inodes" if inodes else _gib(disk.free_bytes)
    largest = [line for line in facts.usage if _beneath(line.split("\t")[-1], disk.mount)]
    return Finding(
        "host.disk-full", "host", host,
        expected=f"room on {disk.mount}, which holds {disk.path}",
        found=f"{left} free of {_gib(disk.size_bytes)}",
        evidence="; ".join(" ".join(line.split()) for line in largest[-4:]),
        fix=on(host, _room(facts, disk, largest)),
    )  # fmt: skip


def _beneath(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")


def _room(facts: HostFacts, disk: Disk, largest: list[str]) -> str:
    """What frees the most of what is certainly nobody's any more."""
    rows = (line.split("\t") for line in largest if "\t" in line)
    candidates = {path: int(size) for size, path in rows}
    sessions = f"{paths.RAY_SESSIONS}/session_"
    old = sum(size for path, size in candidates.items() if path.startswith(sessions))
    journal = sum(s for path, s in candidates.items() if path.startswith("/var/log/journal"))
    if old and old >= journal:
        return (
            f"cd {paths.RAY_SESSIONS} && keep=$(readlink session_latest | sed 's|.*/||') && "
            'find . -maxdepth 1 -name "session_2*" ! -name "${keep:-none}" -exec rm -rf {} +'
        )
    if journal:
        return "journalctl --rotate && journalctl --vacuum-size=200M"
    if disk.mount == "/" or _beneath(facts.docker.root or "/var/lib/docker", disk.mount):
        return "docker image prune --force && apt-get clean && journalctl --vacuum-size=200M"
    biggest = max(candidates, key=lambda path: (candidates[path], path.count("/")), default="")
    return f"rm -r -i {biggest or disk.mount}/*"


def read_only(case: Case) -> Iterator[Finding]:
    """A file system that the kernel, or somebody, made read-only under our state."""
    for host, facts in case.seen():
        for path in (paths.STATE, facts.docker.root or "/var/lib/docker", "/var/log"):
            disk = facts.disks.get(path)
            mount = next((m for m in reversed(facts.mounts)
                          if disk is not None and m.target == disk.mount), None)  # fmt: skip
            if mount is not None and "ro" in mount.options:
                device = mount.source.rpartition("/")[2]
                words = [line for line in facts.kernel_log if device and device in line]
                yield Finding(
                    "host.read-only", "host", host.name,
                    expected=f"{mount.target} writable, which holds {path}",
                    found="mounted read-only",
                    evidence=words[-1] if words else f"mount: {mount.target} {mount.kind} (ro)",
                    # What the kernel gave up after errors it lets nobody write to until a check.
                    fix=by_hand(f"Look at the disk of {mount.target} on {host.name} (smartctl -a, "
                                "nvme smart-log), then reboot with fsck.mode=force")
                    if words
                    else on(host.name, f"mount -o remount,rw {mount.target}"),
                )  # fmt: skip
                break


def hung(case: Case) -> Iterator[Finding]:
    """Mounts whose server is gone: whoever touches one waits with it."""
    for host, facts in case.seen():
        found = dict(facts.hung)
        weights = case.plan.weights_directory
        disk = facts.disks.get(weights)
        over = next((m for m in reversed(facts.mounts) if _beneath(weights, m.target)), None)
        silent = (disk is not None and disk.hung) or facts.model.hung
        if silent and over is not None and _REMOTE.fullmatch(over.kind):
            found.setdefault(over.target, "")
        for target, words in found.items():
            yield _hung(case, host, facts, target, words)


def _hung(case: Case, host: HostPlan, facts: HostFacts, target: str, words: str) -> Finding:
    mount = next((m for m in reversed(facts.mounts) if m.target == target), None)
    source = f"{mount.source} ({mount.kind})" if mount else target
    declared = {m.where: m for m in (*host.storage.local, *host.storage.shares)}
    ours = (case.plan.model_path, case.plan.weights_directory, paths.STATE, facts.docker.root)
    needed = target in declared or any(_beneath(path, target) for path in ours if path)
    away = f"umount --force --lazy {target}"
    if words and target in declared:
        # What is stale stays stale; mounted anew it works where the server is back.
        fix = on(host.name, f"{away}; systemctl restart {declared[target].unit}")
    else:
        fix = by_hand(f"Bring the server of {source} back, or take the mount away on "
                      f"{host.name}: {away}")  # fmt: skip
    return Finding(
        "host.mount-hung", "host", host.name,
        expected=f"an answer of {target} within 3 s",
        found=f"{words}: {source}" if words else f"none: {source} hangs",
        evidence=f"stat -f {target}: {words or 'no answer'}",
        fix=fix,
        severity="failing" if needed else "warning",
    )  # fmt: skip


def mounts(case: Case) -> Iterator[Finding]:
    """Every declared mount is there; else the weights would go to the disk beneath it."""
    for host, facts in case.deployed():
        for mount in (*host.storage.local, *host.storage.shares):
            found = next((m for m in reversed(facts.mounts) if m.target == mount.where), None)
            if found is None:
                yield Finding(
                    "host.mount-missing", "host", host.name,
                    expected=f"{mount.what} mounted on {mount.where}",
                    found="nothing is mounted there"
                    + ("; a disk or a server that is away is awaited" if mount.awaited else ""),
                    evidence=f"{mount.unit}: not in /proc/self/mountinfo",
                    fix=on(host.name, f"systemctl start {mount.unit}"),
                )  # fmt: skip
            elif lost := mount.lost_options(",".join(found.options)):
                yield Finding(
                    "host.mount-options", "host", host.name,
                    expected=f"{mount.where} mounted with {','.join(lost)}",
                    found=",".join(sorted(found.options)),
                    evidence=f"/proc/self/mountinfo: {mount.where} {found.kind}",
                    fix=on(host.name, f"systemctl restart {mount.unit}"),
                    severity="warning",
                )  # fmt: skip


def trouble(case: Case) -> Iterator[Finding]:
    """Errors of disks in the kernel's log."""
    for host, facts in case.seen():
        words = [
            line for line in facts.kernel_log
            if ("I/O error" in line or "EXT4-fs error" in line or "nvme" in line)
        ]  # fmt: skip
        if words:
            yield Finding(
                "host.disk-errors", "host", host.name,
                expected="a kernel log without errors of disks since the boot",
                found=f"{len(words)} lines",
                evidence=words[-1],
                fix=by_hand(f"Look at the disk (`smartctl -a`, `nvme smart-log`) of {host.name}"),
                severity="warning",
            )  # fmt: skip


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


CHECKS = (full, read_only, mounts, hung, trouble)
