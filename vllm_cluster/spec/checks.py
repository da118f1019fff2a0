"""What types alone cannot see: one value against another.

Each check takes the parts that are valid by themselves and yields (path, found, accepted).
A part that is not valid is None there, and a check that needs it stays silent: it would
only repeat an error that is already told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_cluster.spec.hosts_checks import CHECKS as HOSTS_CHECKS
from vllm_cluster.spec.hosts_model import Driver
from vllm_cluster.spec.install_checks import CHECKS as INSTALL_CHECKS
from vllm_cluster.spec.install_model import Install
from vllm_cluster.spec.model import (
    Host,
    Image,
    Memory,
    NetworkSection,
    Parallel,
    Ports,
    Secrets,
    Serve,
    Ssh,
)
from vllm_cluster.spec.source import Path_
from vllm_cluster.spec.storage_checks import CHECKS as STORAGE_CHECKS
from vllm_cluster.spec.storage_model import Storage
from vllm_cluster.spec.weights_checks import CHECKS as WEIGHTS_CHECKS
from vllm_cluster.spec.weights_model import Model, Weights

Finding = tuple[Path_, str, str]

# Linux's default net.ipv4.ip_local_port_range (Documentation/networking/ip-sysctl.rst). The
# kernel hands these ports to any client socket, so a listener among them fails now and then.
EPHEMERAL_FIRST, EPHEMERAL_LAST = 32768, 60999
# Anything wider is no network of machines that stand side by side.
WIDEST_FABRIC = 8


@dataclass
class Parts:
    """The valid parts of a description."""

    hosts: dict[str, Host] = field(default_factory=dict)
    hosts_named: set[str] = field(default_factory=set)
    hosts_whole: bool = False
    head: str | None = None
    workers: list[str] | None = None
    network: NetworkSection | None = None
    parallel: Parallel | Literal["auto"] | None = None
    memory: Memory | None = None
    ports: Ports | None = None
    serve: Serve | None = None
    secrets: Secrets | None = None
    image: Image | None = None
    ssh: Ssh | None = None
    storage: Storage | None = None
    driver: Driver | None = None
    model: Model | None = None
    weights: Weights | None = None
    install: Install | None = None


def unique_addresses(parts: Parts) -> Iterator[Finding]:
    """Two hosts with one address would answer for each other."""
    seen: dict[Any, str] = {}
    for name, host in parts.hosts.items():
        first = seen.setdefault(host.address, name)
        if first != name:
            found = f"{host.address}, the address of {first} too"
            yield ("hosts", name, "address"), found, "an address that no other host has"


def addresses_in_fabric(parts: Parts) -> Iterator[Finding]:
    """An address outside the fabric would pull the traffic over another card."""
    if parts.network is None:
        return
    fabric = parts.network.fabric
    if fabric.prefixlen < WIDEST_FABRIC:
        accepted = f"a network of /{WIDEST_FABRIC} or smaller: every address in it is let in"
        yield ("network", "fabric"), str(fabric), accepted
    for name, host in parts.hosts.items():
        # A /31 and a /32 have neither (RFC 3021).
        ends = {fabric.network_address, fabric.broadcast_address} if fabric.prefixlen < 31 else {}
        if host.address not in fabric:
            accepted = f"an address in network.fabric, {fabric}"
            yield ("hosts", name, "address"), str(host.address), accepted
        elif host.address in ends:
            which = "broadcast" if host.address == fabric.broadcast_address else "network"
            found = f"{host.address}, the {which} address of {fabric}"
            yield ("hosts", name, "address"), found, "an address that a host can have"


def head_and_workers(parts: Parts) -> Iterator[Finding]:
    """Every host has exactly one role."""
    known = ", ".join(sorted(parts.hosts_named))
    if parts.head is not None and parts.hosts_named and parts.head not in parts.hosts_named:
        yield ("head",), f"{parts.head!r}, which is not under hosts", f"one of {known}"
    if parts.workers is None:
        return
    for index, worker in enumerate(parts.workers):
        if worker == parts.head:
            yield ("workers", index), f"{worker!r}, which is the head", "a host that is not it"
        elif parts.hosts_named and worker not in parts.hosts_named:
            yield ("workers", index), f"{worker!r}, which is not under hosts", f"one of {known}"
        elif worker in parts.workers[:index]:
            yield ("workers", index), f"{worker!r} again", "each host once"
    idle = parts.hosts_named - set(parts.workers) - {parts.head}
    if idle and parts.head in parts.hosts_named:
        names = ", ".join(sorted(idle))
        yield ("workers",), f"no role for {names}", "every host as head or worker"


def world_fits_gpus(parts: Parts) -> Iterator[Finding]:
    """TP x PP processes a replica, one GPU each, every host used."""
    if not isinstance(parts.parallel, Parallel) or not parts.hosts_whole:
        return
    tensor, pipeline = parts.parallel.tensor, parts.parallel.pipeline
    replicas = parts.parallel.replicas
    if replicas not in {1, len(parts.hosts)}:
        accepted = f"1, or {len(parts.hosts)}: one on each host"
        yield ("parallel", "replicas"), str(replicas), accepted
        return
    # A tensor group larger than a host is no typing error: what it would cost on the link is
    # said when the model is weighed.
    within = tensor <= min(host.gpus for host in parts.hosts.values())
    for name, host in parts.hosts.items():
        if within and host.gpus % tensor:
            accepted = f"a multiple of parallel.tensor ({tensor})"
            yield ("hosts", name, "gpus"), str(host.gpus), accepted
            return
    total = sum(host.gpus for host in parts.hosts.values())
    if tensor * pipeline * replicas != total:
        copies = f" x {replicas} replicas" if replicas > 1 else ""
        processes = tensor * pipeline * replicas
        found = f"{tensor} x {pipeline}{copies} = {processes} processes for {total} GPUs"
        each = total // replicas
        fit = next(size for size in range(min(tensor, each), 0, -1) if each % size == 0)
        accepted = f"tensor x pipeline = {each}, such as {fit} x {each // fit}"
        yield ("parallel", "pipeline"), found, accepted


def ports_apart(parts: Parts) -> Iterator[Finding]:
    """No port twice, none in the ephemeral range, the workers' range in order."""
    if parts.ports is None:
        return
    single: dict[Path_, int] = {
        ("ports", name): port
        for name, port in parts.ports.model_dump().items()
        if not name.endswith(("_first", "_last"))
    }
    if parts.serve is not None:
        single["serve", "port"] = parts.serve.port
    if parts.ssh is not None:
        single["ssh", "port"] = parts.ssh.port
    first, last = parts.ports.worker_first, parts.ports.worker_last
    yield from _worker_range(first, last)
    ours, end = parts.ports.weights_first, parts.ports.weights_last
    if end < ours or (ours <= EPHEMERAL_LAST and end >= EPHEMERAL_FIRST):
        accepted = f"a range in order, {_below().removeprefix('a port ')}"
        yield ("ports", "weights_last"), f"{ours} to {end}", accepted
    elif ours <= last and end >= first:
        accepted = "a range apart from worker_first to worker_last"
        yield ("ports", "weights_first"), f"{ours} to {end}", accepted
    seen: dict[int, Path_] = {}
    for path, port in single.items():
        other = seen.setdefault(port, path)
        if other != path:
            found = f"{port}, the port of {'.'.join(map(str, other))} too"
            yield path, found, "a port of its own"
        if first <= port <= last:
            yield path, f"{port}, among ports.worker_first to worker_last", "a port of its own"
        if ours <= port <= end:
            yield path, f"{port}, among ports.weights_first to weights_last", "a port of its own"
        if path[0] != "ssh" and EPHEMERAL_FIRST <= port <= EPHEMERAL_LAST:
            yield path, f"{port}, in the kernel's ephemeral range", _below()


def _worker_range(first: int, last: int) -> Iterator[Finding]:
    # A driver and every actor, idle worker and helper of Ray takes one.
    if last - first + 1 < 100:
        found = f"{last}, a range of {max(0, last - first + 1)} ports"
        yield ("ports", "worker_last"), found, "at least worker_first + 99"
    if first <= EPHEMERAL_LAST and last >= EPHEMERAL_FIRST:
        found = f"{first} to {last}, in the kernel's ephemeral range"
        yield ("ports", "worker_first"), found, _below()


def _below() -> str:
    return f"a port below {EPHEMERAL_FIRST} or above {EPHEMERAL_LAST}"


def object_store_fits_shm(parts: Parts) -> Iterator[Finding]:
    """Ray's store lies in /dev/shm beside vLLM's message rings."""
    if parts.memory is not None and parts.memory.object_store > parts.memory.shm // 2:
        found = f"{parts.memory.object_store} bytes of {parts.memory.shm} bytes of shm"
        accepted = "at most half of memory.shm: vLLM's rings and NCCL need the rest"
        yield ("memory", "object_store"), found, accepted


def reserved_arguments(parts: Parts) -> Iterator[Finding]:
    """Arguments that follow from other keys must not be said twice, differently."""
    if parts.serve is None:
        return
    for key in parts.serve.args:
        name = key.replace("_", "-").lstrip("-").split(".")[0]
        if name in RESERVED:
            yield ("serve", "args", key), f"the argument {key}", RESERVED[name]
        elif key.startswith("-"):
            yield ("serve", "args", key), f"{key!r}", f"the name without dashes: {name}"
    for key in parts.serve.env:
        if key in RESERVED_ENV:
            yield ("serve", "env", key), f"the variable {key}", RESERVED_ENV[key]


RESERVED = {
    "tensor-parallel-size": "parallel.tensor",
    "tp": "parallel.tensor",
    "pipeline-parallel-size": "parallel.pipeline",
    "pp": "parallel.pipeline",
    "distributed-executor-backend": "nothing here: it follows from the number of hosts",
    "nnodes": "nothing here: hosts come from the key hosts, processes from Ray",
    "node-rank": "nothing here: ranks follow from hosts and parallel",
    "host": "nothing here: network.api_from says who may reach the API",
    "port": "serve.port",
    "model": "model.source (or model.sources) and model.directory",
    "served-model-name": "model.name",
    "api-key": "secrets.api_key: an argument would show in ps",
    "shutdown-timeout": "serve.shutdown_timeout_s",
    "data-parallel-size": "parallel.replicas",
    "dp": "parallel.replicas",
    "headless": "nothing here: the head answers the API",
    "uds": "nothing here: readiness asks on serve.port",
    "grpc": "nothing here: readiness asks over HTTP",
    "ssl-keyfile": "nothing here: put a proxy that ends TLS in front",
    "ssl-certfile": "nothing here: put a proxy that ends TLS in front",
    "disable-log-stats": "nothing here: the watchdog reads vLLM's statistics",
}
RESERVED_ENV = {
    "VLLM_API_KEY": "secrets.api_key",
    "RAY_AUTH_TOKEN": "secrets.ray_token",
    "RAY_AUTH_TOKEN_PATH": "secrets.ray_token",
    "RAY_AUTH_MODE": "nothing here: it is always token",
    "RAY_ADDRESS": "nothing here: it follows from head and ports.gcs",
    "VLLM_HOST_IP": "hosts.NAME.address",
    "NCCL_SOCKET_IFNAME": "hosts.NAME.interface",
    "GLOO_SOCKET_IFNAME": "hosts.NAME.interface",
    "TP_SOCKET_IFNAME": "hosts.NAME.interface",
    "VLLM_RPC_BASE_PATH": "nothing here: both containers must share it",
    "HF_TOKEN": "nothing here: hosts serve offline from their own disk",
}


def sane_numbers(parts: Parts) -> Iterator[Finding]:
    """Numbers that vLLM would take and nobody can mean; they are wrong without a model too."""
    if parts.serve is None:
        return
    for key, value in parts.serve.args.items():
        name = key.replace("_", "-")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name == "gpu-memory-utilization" and not 0 < value <= 1:
            yield ("serve", "args", key), str(value), "a share above 0, at most 1, such as 0.9"
        if name == "max-model-len" and value != -1 and not 1 <= value <= 10**9:
            yield ("serve", "args", key), str(value), "a number of tokens, 1 or more"
    for key in parts.serve.args:
        twins = [k for k in parts.serve.args if k.replace("_", "-") == key.replace("_", "-")]
        if key != twins[0]:
            yield ("serve", "args", key), f"the argument {twins[0]} again", "one of them"


def one_secret_source(parts: Parts) -> Iterator[Finding]:
    """A secret comes from one place."""
    if parts.secrets is None:
        return
    for name in ("ray_token", "api_key", "hub_token"):
        secret = getattr(parts.secrets, name)
        given = [] if isinstance(secret, str) else [k for k, v in secret if v is not None]
        if not isinstance(secret, str) and len(given) != 1:
            found = ", ".join(given) or "an empty mapping"
            yield ("secrets", name), found, "exactly one of env, file, command; or generate"


def image_is_pinned(parts: Parts) -> Iterator[Finding]:
    """A tag can name another image tomorrow, or on the other host."""
    if parts.image is None or parts.image.archive is not None:
        return
    if "@sha256:" not in parts.image.reference:
        accepted = "NAME@sha256:…, as `docker image inspect --format '{{.RepoDigests}}'` prints it"
        yield ("image", "reference"), f"{parts.image.reference}, a tag", accepted


CHECKS: tuple[Callable[[Parts], Iterator[Finding]], ...] = (
    unique_addresses,
    addresses_in_fabric,
    head_and_workers,
    world_fits_gpus,
    ports_apart,
    object_store_fits_shm,
    reserved_arguments,
    sane_numbers,
    one_secret_source,
    image_is_pinned,
    *STORAGE_CHECKS,
    *WEIGHTS_CHECKS,
    *HOSTS_CHECKS,
    *INSTALL_CHECKS,
)
