"""Power on, off, cut: what a provider's remote console does to a server."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from vllm_cluster.lab import network
from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import (
    Process,
    background,
    children,
    namespace_pids,
    processes_in,
    read_pid_file,
    wait_until,
    write_pid_file,
)

_HALT = 38
"""SIGRTMIN+4: systemd powers off (systemd(1), "Signals"). Glibc's SIGRTMIN is 34."""
_INSIDE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def leader(host: HostLayout) -> Process | None:
    """The host's own systemd, as this machine sees it; None when the host is off."""
    nspawn = read_pid_file(host.nspawn_pid)
    for pid in children(nspawn.pid) if nspawn else []:
        inside = namespace_pids(pid)
        if len(inside) == 2 and inside[1] == 1:
            return Process.of(pid)
    return None


def is_on(host: HostLayout) -> bool:
    """Whether the host has power: on, booting or shutting down."""
    return read_pid_file(host.supervisor_pid) is not None


def console(layout: Layout, host: HostLayout) -> Path:
    """The file that holds what the host printed on its console."""
    return layout.logs / f"{host.name}.console"


def failure(layout: Layout, host: HostLayout, step: str, why: str) -> LabError:
    """An error that says which host, which step, and what the console showed last."""
    log = console(layout, host)
    try:
        tail = "\n".join(
            f"  | {line}" for line in log.read_text("utf-8", "replace").split("\n")[-15:]
        )
    except OSError:
        tail = "  (nothing)"
    return LabError(f"{host.name}: {step}: {why}\nlast lines of {log}:\n{tail}")


_FAILED = ("list-units", "--failed", "--plain", "--no-legend")
_SETTLED_S = 5.0


def start(layout: Layout, host: HostLayout) -> None:
    """Switch the host on, without waiting for anything."""
    arguments = [str(layout.home), layout.name, layout.interface, host.name]
    process = background("supervisor", arguments, console(layout, host))
    known = Process.of(process.pid)
    if known is None:
        raise failure(layout, host, "power on", "the supervisor ended at once")
    write_pid_file(host.supervisor_pid, known)


def nsenter(process: Process, argv: list[str], *, keep: dict[str, str] | None = None) -> list[str]:
    """The command that runs another inside the host, beside its systemd."""
    kept = [f"{name}={value}" for name, value in (keep or {}).items()]
    clean = ["env", "-i", f"PATH={_INSIDE_PATH}", "HOME=/root", "LANG=C.UTF-8", *kept]
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
    return ["nsenter", "--target", str(process.pid), *spaces, "--root", "--wd", *clean, *argv]


def _say(process: Process, *words: str) -> str:
    """What the host's systemctl says; nothing while its systemd does not answer."""
    ask = nsenter(process, ["systemctl", *words])
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def _first_words(lines: str, *, column: int = 0) -> str:
    words = (line.split() for line in lines.splitlines())
    return ", ".join(sorted(found[column] for found in words if len(found) > column))


def wait_booted(layout: Layout, host: HostLayout, *, timeout_s: float) -> str:
    """Wait until systemd has started everything; "running", or "degraded: unit, unit".

    A service may take minutes or wait for another host: once SSH is there and the same jobs have
    been left for a while, that is "starting: unit, unit".

    Raises LabError with the console's last lines when that does not happen in time.
    """
    end = time.monotonic() + timeout_s

    def listening() -> bool:
        process = leader(host)
        if process is None:
            return not is_on(host)
        return Path(f"/proc/{process.pid}/root/run/systemd/private").exists()

    wait_until(listening, timeout_s=timeout_s)
    process = leader(host)
    if process is None:
        raise failure(layout, host, "boot", "it is off" if not is_on(host) else "no systemd")
    state, jobs, since = "", "", time.monotonic()
    while time.monotonic() < end:
        state = _say(process, "is-system-running")
        if state == "running":
            return state
        if state == "degraded":
            return f"degraded: {_first_words(_say(process, *_FAILED))}"
        left = _first_words(_say(process, "list-jobs", "--no-legend"), column=1)
        if left != jobs or _say(process, "is-active", "ssh.service") != "active":
            jobs, since = left, time.monotonic()
        elif jobs and time.monotonic() - since > _SETTLED_S:
            return f"starting: {jobs}"
        time.sleep(0.2)
    raise failure(layout, host, "boot", f"not up after {timeout_s:.0f} s (systemd says {state!r})")


def off(layout: Layout, host: HostLayout, *, timeout_s: float) -> None:
    """Ask the host's systemd to power off and wait until it has."""
    process = leader(host)
    if process is not None:
        process.kill(_HALT)
    if not wait_until(lambda: not is_on(host), timeout_s=timeout_s):
        raise failure(layout, host, "power off", f"still on after {timeout_s:.0f} s")


def cut(layout: Layout, host: HostLayout) -> None:
    """Take the power away: every process of the host ends at once and nothing says goodbye."""
    if network.exists(layout.switch) and network.exists(host.namespace):
        # first the cable: dying processes would close their connections properly
        network.set_cable(layout, host, up=False)
    supervisor, nspawn = read_pid_file(host.supervisor_pid), read_pid_file(host.nspawn_pid)
    process = leader(host)
    if process is not None:
        process.kill(signal.SIGKILL)  # the kernel ends its whole PID namespace with it
    elif nspawn is not None:
        nspawn.end()
    if supervisor is not None and not wait_until(lambda: not supervisor.alive(), timeout_s=10):
        supervisor.end()
    # left over when the supervisor itself was killed earlier
    orphans = list(processes_in(host.netns))
    for orphan in orphans:
        orphan.kill(signal.SIGKILL)
    if not wait_until(lambda: not any(p.alive() for p in orphans), timeout_s=10):
        raise failure(layout, host, "power cut", "processes that do not end")
    network.remove_nic(layout, host)
