"""Disks and shares: file systems only on blank devices, mounts that are there or an error."""

from __future__ import annotations

import shlex
from collections.abc import Generator

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.space import Space
from vllm_cluster.facts.storage import Storage, StorageState
from vllm_cluster.operations import owned
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan.blank import Device, disk_problem, is_mounted, mount_problem, needs_format
from vllm_cluster.plan.space import Need, space_problems
from vllm_cluster.plan.storage import BY_UUID, Export, LocalDisk, Mount

# Longer than a disk takes to appear or a server to answer; a server that is down is told then.
MOUNT_TIMEOUT_S = 60


@operation()
def formatted(disks: tuple[LocalDisk, ...]) -> Generator[StringCommand, None, None]:
    """Make the declared file system on every blank device of `disks`; refuse any other."""
    found = host.get_fact(Storage, devices=[disk.device for disk in disks]).devices
    problems = [words for disk in disks if (words := disk_problem(disk, found[disk.device]))]
    if problems:
        yield refuse("; ".join(problems))
        return
    blank = [disk for disk in disks if needs_format(disk, found[disk.device])]
    if not blank:
        host.noop(f"{', '.join(disk.where for disk in disks)}: file systems are there")
        return
    for disk in blank:
        host.log(f"{disk.device}: blank, gets {disk.format} with UUID {disk.uuid}")
        yield StringCommand(owned.first("disk", disk.device, f"{disk.format} {disk.uuid}"))
        yield _make(disk)


def _make(disk: LocalDisk) -> StringCommand:
    device = shlex.quote(disk.device)
    # Looked at again in the same breath: somebody else may have been quicker. No --force: mkfs
    # itself opens the device exclusively and refuses one that is mounted or held.
    blank = (
        f'real=$(readlink -f {device}); code=0; blkid -p "$real" >/dev/null || code=$?; '
        # blkid(8): 2 is nothing found, and a device that could not be read.
        '[ $code = 2 ] && dd if="$real" of=/dev/null bs=1M count=1 2>/dev/null || '
        '{ echo "refused: $real is not blank any more, or cannot be read" >&2; exit 1; }'
    )
    make = {
        # No blocks kept for root: no system lives there, and 5 % of 4 TB is a model.
        "ext4": f"mkfs.ext4 -q -m 0 -U {disk.uuid}",
        "xfs": f"mkfs.xfs -q -m uuid={disk.uuid}",
    }[disk.format or "ext4"]
    link = f"{BY_UUID}/{disk.uuid}"
    settle = f"if command -v udevadm >/dev/null; then udevadm settle --exit-if-exists={link}; fi"
    return StringCommand(f'{blank}; {make} "$real" </dev/null && sync && {settle}')


@operation()
def mounted(
    mounts: tuple[Mount, ...], disks: tuple[LocalDisk, ...] = ()
) -> Generator[StringCommand, None, None]:
    """Have every one of `mounts` mounted, now and at every boot; what is missing is an error."""
    devices = {disk.where: disk.device for disk in disks}
    state = host.get_fact(
        Storage,
        devices=sorted(set(devices.values())),
        mounts={mount.where: mount.what for mount in mounts},
        units=[mount.unit for mount in mounts],
    )
    problems = [words for mount in mounts if (words := _problem(mount, state, devices))]
    if problems:
        yield refuse("; ".join(problems))
        return
    wrong = {mount: why for mount in mounts if (why := _why(mount, state, devices))}
    if not wrong:
        host.noop(f"{', '.join(mount.where for mount in mounts)}: mounted as declared")
        return
    for mount, why in wrong.items():
        host.log(f"{mount.where}: {why}")
    yield StringCommand("systemctl daemon-reload")
    for mount in wrong:
        unit = shlex.quote(mount.unit)
        yield StringCommand(
            f"{owned.FILES}own_dirs {shlex.quote(mount.where + '/.')} && "
            f"systemctl enable --quiet {unit}"
        )
        there = is_mounted(mount, state.mounts[mount.where], _device(mount, state, devices))
        yield StringCommand(f"systemctl reload {unit}") if there else _start(mount)


def _device(mount: Mount, state: StorageState, devices: dict[str, str]) -> Device | None:
    return state.devices.get(devices.get(mount.where, ""))


def _problem(mount: Mount, state: StorageState, devices: dict[str, str]) -> str:
    return mount_problem(mount, state.mounts[mount.where], _device(mount, state, devices))


def _why(mount: Mount, state: StorageState, devices: dict[str, str]) -> str:
    found, unit = state.mounts[mount.where], state.units[mount.unit]
    if not is_mounted(mount, found, _device(mount, state, devices)):
        return f"{mount.what} is not mounted"
    if lost := mount.lost_options(found.options):
        return f"is mounted without {', '.join(lost)}"
    if not unit.enabled:
        return "is not mounted at boot"
    return "its unit changed" if unit.stale else ""


def _start(mount: Mount) -> StringCommand:
    """Start the unit, wait until it is mounted; say what stood in the way, and who can mend it.

    The unit itself waits for its NFS server for days, which a deploy must not.
    """
    unit, where = shlex.quote(mount.unit), shlex.quote(mount.where)
    words = f"refused: {mount.what} cannot be mounted at {mount.where}: "
    words += "does its server run and export it?" if mount.network else "the reason is above"
    # The directory that a bind mount shows may be the first on its new disk.
    make = f"mkdir -p {shlex.quote(mount.what)} && " if "bind" in mount.options else ""
    return StringCommand(
        f"systemctl reset-failed {unit} 2>/dev/null; "
        f"{make}systemctl start --no-block {unit} && n=0 && "
        f"until mountpoint -q {where}; do n=$((n + 1)); "
        f"if [ $n -gt {MOUNT_TIMEOUT_S * 5} ] || systemctl --quiet is-failed {unit}; then "
        f"journalctl --no-pager --output=cat --lines=10 --unit={unit} >&2; "
        f"echo {shlex.quote(words)} >&2; exit 1; fi; sleep 0.2; done"
    )


class Exported(FactBase[list[str]]):
    """The kernel's export table (exportfs(8), etab), `@active` and `@enabled` for the server.

    `+PATH` for each of `paths` that is a directory.
    """

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, paths: list[str]) -> StringCommand:
        quoted = " ".join(shlex.quote(path) for path in paths)
        return StringCommand(
            f'for p in {quoted}; do [ ! -d "$p" ] || echo "+$p"; done; '
            "cat /var/lib/nfs/etab 2>/dev/null; "
            'echo "@$(systemctl is-enabled nfs-server 2>/dev/null)"; '
            'echo "@$(systemctl is-active nfs-server 2>/dev/null)"'
        )

    def process(self, output: list[str]) -> list[str]:
        return [line.strip() for line in output if line.strip()]


@operation()
def exported(exports: tuple[Export, ...]) -> Generator[StringCommand, None, None]:
    """Have the NFS server run and offer `exports`, whose file is written already."""
    have = host.get_fact(Exported, paths=[export.path for export in exports])
    absent = [export.path for export in exports if f"+{export.path}" not in have]
    running = "@active" in have and "@enabled" in have
    missing = [e for e in exports if not all(_offers(have, e, c) for c in e.clients)]
    if running and not missing and not absent:
        host.noop(f"{', '.join(export.path for export in exports)}: exported")
        return
    if absent:
        host.log(f"{', '.join(absent)}: made, to be exported")
        record = "".join(f"own_dirs {shlex.quote(path + '/.')} && " for path in absent)
        yield StringCommand(f"{owned.FILES}{record}mkdir -p", *[QuoteString(p) for p in absent])
    if not running:
        host.log("nfs-server: is not enabled or does not run")
        enabled = "enabled" if "@enabled" in have else "disabled"
        active = "active" if "@active" in have else "inactive"
        record = owned.first("unit", "nfs-server.service", f"{enabled} {active}")
        yield StringCommand(
            f"{record} && systemctl daemon-reload && systemctl enable --quiet nfs-server"
        )
        yield StringCommand("systemctl start nfs-server")
    for export in missing:
        host.log(f"{export.path}: not offered to all of {', '.join(export.clients)}")
    yield StringCommand("exportfs -ra")


def _offers(table: list[str], export: Export, client: str) -> bool:
    access = "ro" if export.read_only else "rw"
    start = f"{export.path}\t{client}("
    return any(
        line.startswith(start) and access in line[len(start) : -1].split(",") for line in table
    )


@operation()
def roomy(needs: tuple[Need, ...], reserve_bytes: int) -> Generator[StringCommand, None, None]:
    """Refuse where a file system cannot take what the next steps put on it."""
    found = host.get_fact(Space, needs=needs)
    problems = space_problems(needs, found, reserve_bytes)
    if problems:
        yield refuse("; ".join(problems))
        return
    host.noop("there is room for what is to come")
