"""A lab: bare servers made of this machine, on a network of their own."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_cluster.lab import layout as names
from vllm_cluster.lab import network, owners, packages, rootfs, ssh
from vllm_cluster.lab.errors import LabError, WrongValueError
from vllm_cluster.lab.host import Host
from vllm_cluster.lab.layout import Layout
from vllm_cluster.lab.packages import Source
from vllm_cluster.lab.proc import Process, background, read_pid_file, wait_until, write_pid_file
from vllm_cluster.lab.teardown import tear_down

DEFAULT = "lab"
Say = Callable[[str], None]


def quiet(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Lab:
    """A lab that was made; `Lab.load` and `Lab.up` give one."""

    layout: Layout
    release: str
    lower: Path
    sources: tuple[Source, ...]
    names: tuple[str, ...]

    @property
    def hosts(self) -> list[Host]:
        """Its hosts, in order."""
        return [self.host(name) for name in self.names]

    def host(self, name: str) -> Host:
        """One host by name. Raises WrongValueError when the lab has none of that name."""
        if name not in self.names:
            raise WrongValueError(
                f"lab {self.layout.name} has no {name}; it has {', '.join(self.names)}"
            )
        return Host(self.layout, self.layout.host(name), self.lower, self.sources)

    @classmethod
    def load(cls, name: str = DEFAULT) -> Lab:
        """The lab of this name. Raises LabError when there is none."""
        layout = Layout(name, names.project_root())
        try:
            text = layout.description.read_text()
        except FileNotFoundError as error:
            raise LabError(f"there is no lab {name!r}; `up` makes one") from error
        told = json.loads(text)
        return cls(
            layout=Layout(name, layout.home, told["interface"]),
            release=told["release"],
            lower=Path(told["root_file_system"]),
            sources=tuple(Source(**source) for source in told["apt_sources"]),
            names=tuple(host["name"] for host in told["hosts"]),
        )

    @classmethod
    def up(
        cls,
        hosts: int = 2,
        *,
        name: str = DEFAULT,
        release: str = "bookworm",
        interface: str = "fabric0",
        say: Say = quiet,
    ) -> Lab:
        """Make the lab, or what is missing of it, and boot every host that is off.

        Hosts beyond `hosts` that exist are kept. Raises LabError with the host, the step and the
        console's last lines when something fails; what was made stays, and down removes it.
        """
        wanted = names.host_names(hosts)
        packages.require_root_on_linux()
        layout = Layout(name, names.project_root(), interface)
        say = _timed(say)
        say(_announcement(layout, wanted))
        missing = packages.missing_packages()
        if missing:
            packages.install(missing, say)
        with _locked(layout):
            lab = cls._prepared(layout, wanted, release, say)
            say("network: " + lab._start_network())
            lab._boot(say)
            lab._describe()
        return lab

    @classmethod
    def _prepared(cls, layout: Layout, wanted: list[str], release: str, say: Say) -> Lab:
        """Claim the name, find the root file system, write what all hosts share."""
        owners.claim(layout)
        have: tuple[str, ...] = ()
        if layout.description.exists():
            old = cls.load(layout.name)
            if (old.release, old.layout.interface) != (release, layout.interface):
                raise LabError(
                    f"lab {layout.name} is {old.release} with interface {old.layout.interface}; "
                    "down removes it, or give another name with --lab"
                )
            if not old.lower.is_dir():
                raise LabError(f"{old.lower} is gone, and the hosts' disks with it; use down")
            have, lower, sources = old.names, old.lower, old.sources
        if not have:
            lower = rootfs.ensure(layout.cache, release, say)
            sources = tuple(packages.debian_sources(release))
        layout.logs.mkdir(parents=True, exist_ok=True)
        ssh.ensure_key(layout)
        every = tuple(sorted({*have, *wanted}))
        lab = cls(layout, release, lower, sources, every)
        ssh.write_config(layout, [layout.host(n) for n in every])
        lab._describe()
        return lab

    def _start_network(self) -> str:
        """The switch, the outsider, the package proxy."""
        network.make_switch(self.layout)
        if read_pid_file(self.layout.proxy_pid) is not None:
            return "there"
        log = self.layout.logs / "apt-proxy.log"
        cache = str(self.layout.cache / "apt")
        place = [f"/run/netns/{self.layout.switch}", names.CONTROL_ADDRESS, str(names.APT_PORT)]
        uris = list(dict.fromkeys(source.uri for source in self.sources))
        began = log.stat().st_size if log.exists() else 0
        child = background("apt_proxy", [*place, cache, *uris], log)
        process = Process.of(child.pid)

        def serving() -> bool:
            return child.poll() is not None or "serving" in log.read_text()[began:]

        if process is None or not wait_until(serving, timeout_s=20) or child.poll() is not None:
            raise LabError(f"the package proxy did not start:\n{log.read_text()[-2000:]}")
        write_pid_file(self.layout.proxy_pid, process)
        return f"bridge in {self.layout.switch}, package proxy on {names.CONTROL_ADDRESS}"

    def _boot(self, say: Say) -> None:
        """All hosts at once; every failure is told, not only the first."""

        def one(host: Host) -> str | None:
            was_on = host.is_on
            try:
                state = host.power_on()
            except LabError as error:
                return str(error)
            say(f"{host.name} {host.address}: {'was on, ' if was_on else ''}{state}, SSH answers")
            return None

        with ThreadPoolExecutor(max_workers=len(self.names)) as pool:
            failures = [text for text in pool.map(one, self.hosts) if text]
        if failures:
            raise LabError("\n".join(failures))

    def describe(self) -> dict[str, object]:
        """The lab as lab.json tells it; numbers of processes are those of this moment."""
        proxy = read_pid_file(self.layout.proxy_pid)
        return {
            "name": self.layout.name,
            "release": self.release,
            "interface": self.layout.interface,
            "root_file_system": str(self.lower),
            "apt_sources": [asdict(source) for source in self.sources],
            "apt_proxy": f"http://{names.CONTROL_ADDRESS}:{names.APT_PORT}",
            "apt_proxy_pid": None if proxy is None else proxy.pid,
            "subnet": str(names.SUBNET),
            "control": {"address": names.CONTROL_ADDRESS, "namespace": self.layout.switch},
            "outside": {"address": names.OUTSIDE_ADDRESS, "namespace": self.layout.outside},
            "ssh_config": str(self.layout.ssh_config),
            "ssh_known_hosts": str(self.layout.known_hosts),
            "ssh_key": str(self.layout.key),
            "hosts": [
                {
                    "name": host.name,
                    "address": host.address,
                    "mac": host.place.mac,
                    "namespace": host.place.namespace,
                    "on": host.is_on,
                    "leader_pid": host.leader_pid,
                    "root": str(host.place.root),
                    "stores": {k: str(v) for k, v in host.place.stores.items()},
                    "console": str(host.console),
                }
                for host in self.hosts
            ],
        }

    def _describe(self) -> None:
        new = self.layout.description.with_suffix(".new")
        new.write_text(json.dumps(self.describe(), indent=2) + "\n")
        new.rename(self.layout.description)

    def outside_argv(self, argv: list[str]) -> list[str]:
        """The command that runs another from an address that is no host of the lab."""
        return [*network.enter(self.layout.outside), *argv]

    def outside(self, *argv: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command of this machine at an address that is no host; code not judged."""
        return subprocess.run(
            self.outside_argv(list(argv)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def down(self, *, say: Say = quiet) -> None:
        """Remove this lab."""
        down(self.layout.name, say=say)


def down(name: str = DEFAULT, *, say: Say = quiet) -> None:
    """Remove a lab: whole, half-made, crashed, or left from before a reboot of the machine."""
    packages.require_root_on_linux()
    layout = Layout(name, names.project_root())
    owners.must_be_ours(layout)
    say = _timed(say)
    with _locked(layout):
        tear_down(layout, say)
        if layout.directory.exists():
            shutil.rmtree(layout.directory)
        for line in owners.release(layout):
            say(line)
        say(f"lab {name}: removed")


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """One up or down at a time on a lab."""
    layout.directory.parent.mkdir(parents=True, exist_ok=True)
    path = layout.directory.parent / f".{layout.name}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or not path.samefile(f"/proc/self/fd/{lock.fileno()}"):
            lock.close()  # the one before us removed the lab, and this file with it
            with _locked(layout):
                yield
            return
        yield
        if not layout.directory.exists():
            path.unlink()


def _timed(say: Say) -> Say:
    began = time.monotonic()
    return lambda text: say(f"[{time.monotonic() - began:6.1f} s] {text}")


def _announcement(layout: Layout, wanted: list[str]) -> str:
    return (
        f"lab {layout.name}: {len(wanted)} hosts ({wanted[0]} … {wanted[-1]}) on {names.SUBNET}. "
        f"On this machine it makes: network namespaces {layout.switch}, {layout.outside} and "
        f"vc-{layout.name}-node-*, overlay mounts and files under {layout.directory}, a root file "
        f"system and packages under {layout.cache}, a cgroup vc-lab-{layout.name}, and the "
        "processes of the hosts. The machine's own network is not touched."
    )
