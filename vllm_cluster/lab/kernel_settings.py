"""Settings of the one kernel that all hosts share with this machine, kept and put back.

A container's root writes /proc/sys as a server's does (dockerd needs it), and what is not in a
namespace is then the machine's: vm.max_map_count, fs.protected_regular, transparent huge pages.
Already systemd-sysctl at a host's boot does so.
"""

from __future__ import annotations

import json
from pathlib import Path

_TREES = ("vm", "fs", "kernel")
_EXCEPT = ("ns_last_pid", "random", "binfmt_misc")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_INSTANCES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _files() -> list[Path]:
    """Settings that can be read and written; some others only trigger something."""
    found = [_HUGE_PAGES / "enabled", _HUGE_PAGES / "defrag"]
    for tree in _TREES:
        for path in sorted(Path("/proc/sys", tree).rglob("*")):
            both = 0o600
            if not set(path.parts) & set(_EXCEPT) and path.is_file():
                found += [path] if path.stat().st_mode & both == both else []
    return [path for path in found if path.name != "stat_refresh" and path.exists()]


def _read() -> dict[str, str]:
    values = {}
    for path in _files():
        try:
            text = path.read_text().strip()
        except OSError:  # some are there but answer only for hardware that is not
            continue
        chosen = text.partition("[")[2].partition("]")[0]  # always [madvise] never
        values[str(path)] = chosen or text
    return values


def keep(file: Path) -> None:
    """Write the settings of this moment down, unless that was done since this machine's boot."""
    boot = _BOOT_ID.read_text().strip()
    if file.exists() and json.loads(file.read_text())["boot_id"] == boot:
        return
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"boot_id": boot, "values": _read()}))
    new.rename(file)


def make_room() -> None:
    """Allow the inotify instances that many hosts need; call it after `keep`.

    They are counted by user, and root is one user for all hosts of this machine: the default of
    128 is used up by some ten of them, and the next one hangs while it boots.
    """
    if int(_INOTIFY.read_text()) < _INOTIFY_INSTANCES:
        _INOTIFY.write_text(str(_INOTIFY_INSTANCES))


def put_back(file: Path) -> list[str]:
    """Write back what differs from what was kept; one line for each such setting."""
    if not file.exists():
        return []
    kept = json.loads(file.read_text())
    said = []
    if kept["boot_id"] == _BOOT_ID.read_text().strip():
        now = _read()
        for path, value in kept["values"].items():
            if path in now and now[path] != value:
                Path(path).write_text(value)
                said.append(f"{path}: {now[path]} put back to {value}")
    file.unlink()
    return said
