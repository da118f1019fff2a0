"""Disks, mounts, exports and free space of a host, in one round trip."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.blank import Device, Mounted

# Fields are separated by tabs; blkid, findmnt and systemd print none. blkid -p reads the device
# itself: its cache would still tell of a file system that was wiped, or not of a new one.
_SCRIPT = r"""
t=$(printf '\t')
device() {
  real=$(readlink -f "$1"); [ -b "$real" ] || { echo "device$t$1$t$t$t$t$t"; return; }
  kernel=${real##*/}
  probed=$(blkid -p -o export "$real" 2>/dev/null); code=$?
  value() { printf '%s\n' "$probed" | sed -n "s/^$1=//p" | head -n1 | sed 's/\\\(.\)/\1/g'; }
  what=$(value TYPE); [ -n "$what" ] || what=$(value PTTYPE)
  case $code in 0|2) ;; *) what=ambivalent ;; esac
  # 2 is also what blkid says of a device that it cannot read (blkid(8)).
  [ $code -ne 2 ] || dd if="$real" of=/dev/null bs=1M count=1 2>/dev/null || what=unreadable
  [ $code -ne 0 ] || [ -n "$what" ] || what=unknown
  users=
  for part in $(lsblk -nro NAME "$real" 2>/dev/null | tail -n +2); do users="$users,$part"; done
  for at in $(findmnt -nro TARGET -S "$real" 2>/dev/null); do users="$users,mounted at $at"; done
  grep -q "^$real " /proc/swaps && users="$users,swap"
  for by in /sys/class/block/"$kernel"/holders/*; do
    [ ! -e "$by" ] || users="$users,held by ${by##*/}"
  done
  number=$(cat /sys/class/block/"$kernel"/dev 2>/dev/null)
  echo "device$t$1$t$real$t$number$t$what$t$(value UUID)$t${users#,}"
}
mount_at() {
  row=$(findmnt -nro SOURCE,MAJ:MIN,FSTYPE,OPTIONS --mountpoint "$1" 2>/dev/null |
    grep -v '^systemd-1 ' | tail -n1 | tr ' ' "$t")
  file=; same=no
  if [ -n "$row" ]; then [ ! "$1" -ef "$2" ] || same=yes
  else row="$t$t$t"; file=$(find "$1" -xdev -mindepth 1 -not -type d -print -quit 2>/dev/null); fi
  echo "mount$t$1$t$row$t$same$t$file"
}
unit() {
  state=$(systemctl show -P UnitFileState -P NeedDaemonReload -P ActiveState -P LoadState "$1" |
    sed '/^$/d' | tr '\n' "$t")
  echo "unit$t$1$t$state"
}
"""


@dataclass(frozen=True)
class MountUnit:
    """What systemd says of a mount's unit."""

    enabled: bool
    stale: bool
    active: str


@dataclass(frozen=True)
class StorageState:
    """See Storage. Keys are the device, the mount point, the unit's name."""

    devices: dict[str, Device] = field(default_factory=dict)
    mounts: dict[str, Mounted] = field(default_factory=dict)
    units: dict[str, MountUnit] = field(default_factory=dict)


class Storage(FactBase[StorageState]):
    """State of `devices` (paths), of `mounts` (mount point -> source), of `units`."""

    @staticmethod
    def default() -> StorageState:
        return StorageState()

    def command(
        self,
        devices: list[str],
        mounts: dict[str, str] | None = None,
        units: list[str] | None = None,
    ) -> StringCommand:
        calls = [f"device {shlex.quote(device)}" for device in devices]
        calls += [
            f"mount_at {shlex.quote(where)} {shlex.quote(what)}"
            for where, what in (mounts or {}).items()
        ]
        calls += [f"unit {shlex.quote(name)}" for name in units or []]
        return StringCommand("sh", "-c", QuoteString("\n".join([_SCRIPT, *calls, "true"])))

    def process(self, output: list[str]) -> StorageState:
        state = StorageState()
        for line in output:
            kind, *values = line.split("\t")
            try:
                if kind == "device":
                    name, real, number, signature, uuid, users = values
                    held = tuple(user for user in users.split(",") if user)
                    state.devices[name] = Device(real, number, signature, uuid, held)
                elif kind == "mount":
                    where, source, number, fs_type, options, same, file = values
                    state.mounts[where] = Mounted(
                        source, number, fs_type, options, file, same == "yes"
                    )
                elif kind == "unit":
                    state.units[values[0]] = _unit(set(values[1:]))
            except (ValueError, IndexError) as error:
                raise FactProcessError(f"not a line of storage: {line[:200]!r}") from error
        return state


def _unit(values: set[str]) -> MountUnit:
    active = {"active", "activating", "deactivating", "failed", "inactive", "reloading"} & values
    return MountUnit(
        enabled="enabled" in values, stale="yes" in values, active="".join(sorted(active)[:1])
    )
