"""The ways of bringing a model from host 0 to the others, each timed until all have it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.weights.fleet import Fleet, wait_until
from benchmarks.weights.net import Net

_SSH_PORT, _RSYNC_PORT = 2222, 8730


@dataclass(frozen=True)
class Place:
    """Where a measurement happens: the network, a directory, what to put before a command."""

    net: Net
    base: Path
    source: Path
    metered: list[str]


def fan_out(place: Place) -> float:
    """Our agents. The time ends when the last host has published its verified copy."""
    fleet = Fleet(place.net, place.base)
    fleet.link_mbit = place.net.rate_mbit or 20_000
    fleet.obtain(place.source)  # once, whatever the number of hosts; every way has its source
    fleet.prefix = place.metered
    numbers = list(range(1, place.net.count))
    start = time.time()
    processes = fleet.start_all(numbers)
    try:
        failed = [n for n, process in processes.items() if process.wait(900)]
    finally:
        fleet.stop_all()
    if failed:
        raise RuntimeError("\n".join(fleet.log(n) for n in failed))
    return max(float(fleet.state(n)["placed"]) for n in numbers) - start


def rsync_daemon(place: Place) -> float:
    """Every host pulls from a daemon on host 0, all at once."""
    with ExitStack() as stack:
        config = place.base / "rsyncd.conf"
        config.write_text(
            f"use chroot = no\nuid = 0\ngid = 0\n[model]\npath = {place.source}\nread only = yes\n"
        )
        argv = ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={_RSYNC_PORT}"]
        _background(stack, [*place.net.enter(0), *place.metered, *argv])
        _await_port(place.net, 0, _RSYNC_PORT)
        url = f"rsync://{place.net.address(0)}:{_RSYNC_PORT}/model/"

        def pull(number: int) -> list[str]:
            return [*place.net.enter(number), *place.metered, "rsync", "-rt", "--whole-file", url,
                    _target(place, number)]  # fmt: skip

        return _timed([pull(number) for number in range(1, place.net.count)], at_once=True)


def rsync_ssh_serial(place: Place) -> float:
    """Host 0 pushes over ssh, one host after the other: the afternoon this replaces."""
    return _rsync_ssh(place, at_once=False)


def rsync_ssh_parallel(place: Place) -> float:
    """Host 0 pushes over ssh to all at once."""
    return _rsync_ssh(place, at_once=True)


def _rsync_ssh(place: Place, *, at_once: bool) -> float:
    with ExitStack() as stack:
        key, host_key = place.base / "key", place.base / "host_key"
        for path in (key, host_key):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
        Path("/run/sshd").mkdir(exist_ok=True)
        config = place.base / "sshd_config"
        config.write_text(
            f"Port {_SSH_PORT}\nHostKey {host_key}\nAuthorizedKeysFile {key}.pub\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nMaxStartups 100\n"
            "PidFile none\n"
        )
        for number in range(1, place.net.count):
            argv = ["/usr/sbin/sshd", "-D", "-f", str(config)]
            _background(stack, [*place.net.enter(number), *place.metered, *argv])
            _await_port(place.net, number, _SSH_PORT)
        shell = (
            f"ssh -p {_SSH_PORT} -i {key} -o StrictHostKeyChecking=no -o LogLevel=ERROR"
            f" -o UserKnownHostsFile={place.base / 'known_hosts'} -F none"
        )

        def push(number: int) -> list[str]:
            to = f"root@{place.net.address(number)}:{_target(place, number)}"
            return [*place.net.enter(0), *place.metered, "rsync", "-rt", "--whole-file", "-e",
                    shell, f"{place.source}/", to]  # fmt: skip

        return _timed([push(number) for number in range(1, place.net.count)], at_once=at_once)


WAYS: dict[str, Callable[[Place], float]] = {
    "fan-out": fan_out,
    "rsync daemon, all at once": rsync_daemon,
    "rsync over ssh, all at once": rsync_ssh_parallel,
    "rsync over ssh, one after the other": rsync_ssh_serial,
}


def _target(place: Place, number: int) -> str:
    directory = place.base / f"host{number}"
    directory.mkdir(exist_ok=True)
    return f"{directory}/"


def _timed(commands: list[list[str]], *, at_once: bool) -> float:
    start = time.time()
    if at_once:
        processes = [subprocess.Popen(argv) for argv in commands]
        codes = [process.wait() for process in processes]
    else:
        codes = [subprocess.run(argv, check=False).returncode for argv in commands]
    if any(codes):
        raise RuntimeError(f"ended with {codes}: {commands[0]}")
    return time.time() - start


def _background(stack: ExitStack, argv: list[str]) -> None:
    process = subprocess.Popen(argv)

    def end() -> None:
        process.terminate()
        process.wait()

    stack.callback(end)


def _await_port(net: Net, number: int, port: int) -> None:
    def open_now() -> bool:
        done = subprocess.run(
            [*net.enter(number), "ss", "-Htln", f"sport = :{port}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return bool(done.stdout.strip())

    wait_until(open_now, 20, f"port {port} on host {number}")


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, env={**os.environ, "LC_ALL": "C"})
