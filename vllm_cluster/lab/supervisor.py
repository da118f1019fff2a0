"""What keeps one host powered: a process that runs systemd-nspawn and boots it again on reboot.

Started by power-on as `python -m vllm_cluster.lab.supervisor HOME LAB INTERFACE HOST`; it ends
when the host powers itself off or is cut, and takes the host's network and cgroup with it:
a host without power answers nothing, not even with a refusal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from vllm_cluster.lab import cgroup, disks, network, rlimits
from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import Process, write_pid_file

_REBOOT = 133
"""systemd-nspawn --keep-unit leaves a reboot to whoever started it, with this exit code."""


def nspawn_command(host: HostLayout) -> list[str]:
    """The command that boots a host's file system as a server with systemd as PID 1."""
    return [
        # not --network-namespace-path: that mounts a /sys with the machine's network devices
        *network.enter(host.namespace),
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--boot",
        f"--directory={host.root}",
        f"--machine={host.namespace}",
        f"--hostname={host.name}",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--capability=all",
        # without keyrings runc fails: `unable to join session keyring`
        "--system-call-filter=add_key keyctl bpf @keyring",
        *(f"--bind={outside}:{inside}" for inside, outside in host.stores.items()),
        *(f"--bind={device}" for device in disks.devices(host)),
        "--console=pipe",
    ]


def nspawn_environment() -> dict[str, str]:
    """cgroup v2 inside whatever the machine has; /proc/sys writable, as dockerd needs it."""
    return {
        "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
        "SYSTEMD_NSPAWN_TMPFS_TMP": "0",
    }


def boot_once(layout: Layout, host: HostLayout) -> int:
    """One boot, from power-on to off; the exit code of systemd-nspawn."""
    network.make_nic(layout, host)
    group = cgroup.make(layout, host)
    # hosts in one cgroup would share their units' cgroups, and stop each other's services
    join = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
    nspawn = subprocess.Popen(
        ["sh", "-ec", join, "join", str(group), *nspawn_command(host)],
        env=nspawn_environment(),
        stdin=subprocess.DEVNULL,
    )
    process = Process.of(nspawn.pid)
    if process is not None:
        write_pid_file(host.nspawn_pid, process)
    return nspawn.wait()


def _sweep(host: HostLayout) -> None:
    """Remove the folder that systemd-nspawn leaves where /run is on a disk."""
    left = Path("/run/systemd/nspawn/propagate", host.namespace)
    if left.is_dir():
        left.rmdir()


def main(argv: list[str]) -> int:
    """Keep the host powered until it goes off."""
    home, lab, interface, name = argv
    layout = Layout(lab, Path(home), interface)
    host = layout.host(name)
    try:
        rlimits.emulate()
    except OSError as error:
        print(f"=== {name}: limits above this machine's cannot be set: {error}", flush=True)
    try:
        while True:
            print(f"=== {time.strftime('%F %T')} {name}: power on", flush=True)
            code = boot_once(layout, host)
            print(f"=== {time.strftime('%F %T')} {name}: off, exit code {code}", flush=True)
            _sweep(host)
            if code != _REBOOT:
                return code
    except LabError as error:
        print(f"=== {name}: {error}", flush=True)
        return 1
    finally:
        network.remove_nic(layout, host)
        cgroup.remove(layout, host)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
