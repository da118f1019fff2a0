"""Bare lab hosts, one part of the deploy at a time, and tools that look from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import yaml

from tests.lab import standin
from tests.lab.harness import Cluster, describe
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab
from vllm_cluster.lab.host import Host
from vllm_cluster.lab.network import enter
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

Edit = dict[str, object]
_PATIENCE_S = 500  # a package takes seconds, but minutes on a machine that does much else


@dataclass(frozen=True)
class Bare:
    """A lab of bare hosts and a description of a cluster that they shall become."""

    cluster: Cluster
    folder: Path

    @property
    def lab(self) -> Lab:
        """The lab."""
        return self.cluster.lab

    @property
    def a(self) -> Host:
        """The head to be."""
        return self.lab.host("node-a")

    @property
    def b(self) -> Host:
        """The worker to be."""
        return self.lab.host("node-b")

    def wipe(self) -> None:
        """Bare operating systems again, all at once."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: host.wipe(), self.lab.hosts))

    def install(self, *packages: str, only: Host | None = None) -> None:
        """Packages on all hosts at once, or on one."""
        line = f"apt-get install -qq -y --no-install-recommends {' '.join(packages)}"
        hosts = [only] if only else self.lab.hosts
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: ok(host, f"apt-get update -qq && {line}"), hosts))

    def edit(self, **sections: Edit) -> None:
        """Write the description anew: the lab's own, with `sections` merged into its sections."""
        whole = yaml.safe_load((self.folder / "original.yaml").read_text())
        for section, values in sections.items():
            whole[section] = {**whole.get(section, {}), **values}
        self.cluster.description.write_text(yaml.safe_dump(whole, sort_keys=False))

    def run(self, part: str, *limit: str) -> subprocess.CompletedProcess[str]:
        """Deploy one part as a person does; its exit code is not judged."""
        chosen = [word for host in limit for word in ("--limit", host)]
        return self.cluster.pyinfra("-y", *chosen, deploy=f"deploys/{part}.py")

    def apply(self, part: str, *limit: str) -> str:
        """Deploy one part; what pyinfra said. Fails when a host failed."""
        done = self.run(part, *limit)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said

    def refused(self, part: str, *limit: str) -> str:
        """Deploy one part, which some host must refuse; what was said."""
        done = self.run(part, *limit)
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        assert "refused:" in said, said
        assert "Traceback" not in said, said
        return said

    def changed(self, part: str, *limit: str) -> list[str]:
        """Deploy one part; the operations that changed something."""
        chosen = [word for host in limit for word in ("--limit", host)]
        done = self.cluster.pyinfra("--json", "--yes", *chosen, deploy=f"deploys/{part}.py")
        assert done.returncode == 0, done.stdout + done.stderr
        operations = json.loads(done.stdout)["results"]["operations"]
        return [operation["name"] for operation in operations if operation["success"]]


@contextmanager
def bare(name: str, folder: Path, *, hosts: int = 2, release: str = "bookworm") -> Iterator[Bare]:
    """A lab of this name for as long as the block runs."""
    archive = folder / "image.tar"
    lab = Lab.up(hosts, name=lab_name(name), release=release)
    try:
        standin.write(lab, archive)
        model = standin.model(folder / "model")
        cluster = describe(lab, folder, _with_standins(archive, model, hosts))
        (folder / "original.yaml").write_text(cluster.description.read_text())
        yield Bare(cluster, folder)
    finally:
        lab.down()


def _with_standins(archive: Path, model: Path, hosts: int) -> Callable[[str], str]:
    def edit(text: str) -> str:
        whole = yaml.safe_load(text)
        whole["image"]["archive"] = str(archive)
        whole["model"]["source"] = str(model)
        if hosts == 1:
            del whole["hosts"]["node-b"]
            whole["parallel"]["pipeline"] = 1
        return yaml.safe_dump(whole, sort_keys=False)

    return edit


def ok(host: Host, command: str) -> str:
    """The output of a root shell's command over SSH; fails when it fails."""
    done = host.ssh(command, timeout_s=_PATIENCE_S)
    assert done.returncode == 0, f"{host.name}: {command}: {done.stderr}"
    return done.stdout


_LISTEN = """
import socket, sys
kept = []
for port in map(int, sys.argv[1].split(",")):
    one = socket.create_server(("0.0.0.0", port), backlog=64)
    kept.append(one)
print("listening", flush=True)
sys.stdin.read()
"""

_SCAN = """
import asyncio, sys
async def one(port):
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(sys.argv[1], port), 1.0)
    except (OSError, TimeoutError):
        return None
    writer.close()
    return port
async def main():
    found = await asyncio.gather(*(one(int(p)) for p in sys.argv[2].split(",")))
    print(*[port for port in found if port is not None])
asyncio.run(main())
"""


def planned(hosts: Bare, host: Host, source: str, ports: Iterable[int]) -> set[int]:
    """Those of `ports` of `host` that the plan opens to the address `source`."""
    allow = make_plan(load(hosts.cluster.description).description).hosts[host.name].allow
    address = IPv4Address(source)
    return {
        port
        for port in ports
        for rule in allow
        if any(address in IPv4Network(network) for network in rule.sources)
        and (not rule.ports or port in rule.ports)
    }


@contextmanager
def listening(hosts: Iterable[Host], ports: Iterable[int]) -> Iterator[None]:
    """Something answers on every one of `ports` of `hosts`."""
    started = []
    words = ",".join(map(str, ports))
    try:
        for host in hosts:
            argv = [*enter(host.place.namespace), sys.executable, "-c", _LISTEN]
            process = subprocess.Popen(
                [*argv, words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
        yield
    finally:
        for process in started:
            process.communicate("")


def scan(namespace: str, address: str, ports: Iterable[int]) -> set[int]:
    """Those of `ports` at `address` to which a connection from `namespace` comes through."""
    argv = [*enter(namespace), sys.executable, "-c", _SCAN, address]
    words = ",".join(map(str, ports))
    done = subprocess.run([*argv, words], capture_output=True, text=True, check=True, timeout=60)
    return {int(word) for word in done.stdout.split()}
