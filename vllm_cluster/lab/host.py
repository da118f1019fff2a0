"""One host of a lab, as tests and the command line handle it."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.lab import disks, network, power, snapshots, ssh, storage
from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.packages import Source
from vllm_cluster.lab.proc import Process

BOOT_TIMEOUT_S = 120.0
OFF_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Host:
    """A host. Its methods may be called from several threads or processes at once."""

    layout: Layout
    place: HostLayout
    lower: Path
    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        """node-a …"""
        return self.place.name

    @property
    def address(self) -> str:
        """Its address on the lab's network."""
        return self.place.address

    @property
    def leader_pid(self) -> int | None:
        """The number of its systemd on this machine, None when it is off."""
        process = power.leader(self.place)
        return None if process is None else process.pid

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return power.is_on(self.place)

    @property
    def console(self) -> Path:
        """The log of its console."""
        return power.console(self.layout, self.place)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One power or disk action at a time on this host."""
        self.place.directory.mkdir(parents=True, exist_ok=True)
        with (self.place.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def power_on(self, *, timeout_s: float = BOOT_TIMEOUT_S) -> str:
        """Boot and wait until systemd has started all and SSH lets in.

        Returns "running" or "degraded: units". A host that is on is left as it is.
        """
        with self._alone():
            self._disk()
            if not self.is_on:
                power.start(self.layout, self.place)
            state = power.wait_booted(self.layout, self.place, timeout_s=timeout_s)
            login = self.ssh("true", timeout_s=30)
            if login.returncode != 0:
                raise power.failure(self.layout, self.place, "SSH", login.stderr.strip())
            return state

    def power_off(self, *, timeout_s: float = OFF_TIMEOUT_S) -> None:
        """A clean shutdown, waited for. Nothing when it is off."""
        with self._alone():
            power.off(self.layout, self.place, timeout_s=timeout_s)

    def power_cut(self) -> None:
        """Off at once: no unit stops, no connection closes. Nothing when it is off."""
        with self._alone():
            power.cut(self.layout, self.place)

    def wipe(self, *, timeout_s: float = BOOT_TIMEOUT_S) -> str:
        """A bare OS again, with another machine ID and SSH host key; booted."""
        with self._alone():
            power.cut(self.layout, self.place)
            storage.remove_disk(self.place)
            storage.make_disk(self.layout, self.place, self.lower, list(self.sources))
        self._learn_keys()
        return self.power_on(timeout_s=timeout_s)

    def _disk(self) -> None:
        """The disk, made when there is none, mounted when it is not (a machine's reboot)."""
        if not storage.host_key(self.place).exists():
            storage.remove_disk(self.place)
            storage.make_disk(self.layout, self.place, self.lower, list(self.sources))
            self._learn_keys()
        storage.mount_root(self.place, self.lower)
        snapshots.mount(self.place)

    def _learn_keys(self) -> None:
        """known_hosts anew, out of the keys of all hosts."""
        with (self.layout.directory / "known_hosts.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            every = self.layout.every_host()
            known = [h for h in every if storage.host_key(h).exists()]
            ssh.write_known_hosts(self.layout, known)

    def link(self, *, up: bool) -> None:
        """Plug the cable in or pull it out."""
        self._must_be_on()
        network.set_cable(self.layout, self.place, up=up)

    def shape(self, rate: str | None) -> None:
        """Let the cable carry `rate` (100mbit) each way; None for all it can."""
        self._must_be_on()
        network.shape(self.layout, self.place, rate)

    def add_disk(self, size_bytes: int) -> str:
        """A further disk without a file system, there again after every power-on, gone by wipe.

        Returns its device, as in "/dev/loop3". There is no udev in the hosts: no /dev/disk/by-uuid.
        """
        with self._alone():
            process = self._must_be_on()
            device = disks.add(self.place, size_bytes)
            disks.make_node(Path(f"/proc/{process.pid}/root"), device)
            return device

    def exec_argv(self, argv: list[str], *, keep: dict[str, str] | None = None) -> list[str]:
        """The command that runs another as root inside, without network or SSH."""
        return power.nsenter(self._must_be_on(), argv, keep=keep)

    def exec(
        self, *argv: str, timeout_s: float = 120, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root inside, without network or SSH; its exit code is not judged."""
        return _captured(self.exec_argv(list(argv)), timeout_s, stdin)

    def ssh(
        self, command: str, *, user: str = "root", timeout_s: float = 120, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command over SSH; its exit code is not judged (255: SSH itself failed)."""
        config = ["-F", str(self.layout.ssh_config), "-o", "BatchMode=yes", "-l", user]
        return _captured(["ssh", *config, self.name, command], timeout_s, stdin)

    def _must_be_on(self) -> Process:
        process = power.leader(self.place)
        if process is None:
            raise LabError(f"{self.name} is off; power-on starts it")
        return process


def _captured(
    argv: list[str], timeout_s: float, stdin: str | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
