"""The description of a cluster, typed. Every `description=` is what an error says is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vllm_cluster.spec.hosts_model import (
    Clock,
    Docker,
    Driver,
    Kernel,
    MemoryAdditions,
    Names,
    NetworkAdditions,
    Rdma,
    Toolkit,
)
from vllm_cluster.spec.install_model import Install
from vllm_cluster.spec.problems import DescriptionError, Problem
from vllm_cluster.spec.storage_model import Storage
from vllm_cluster.spec.types import (
    Address,
    Bytes,
    HostName,
    Name,
    Network,
    Version,
)
from vllm_cluster.spec.weights_model import Model, Weights

GIB = 2**30
Port = Annotated[int, Field(strict=True, ge=1, le=65535, description="a port, 1 to 65535")]
Count = Annotated[int, Field(strict=True, ge=1, description="a whole number, 1 or more")]
Seconds = Annotated[int, Field(strict=True, ge=1, description="whole seconds, 1 or more")]
Scalar = str | int | float | bool
ArgumentValue = Scalar | list[Scalar] | dict[str, Any]


class Section(BaseModel):
    """A part of the description. Unknown keys are errors: a typo must not be silent."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _yes(value: Any) -> Any:
    """YAML 1.1 reads the word yes as true."""
    return "yes" if value is True else value


class Ssh(Section):
    """How the machine that runs pyinfra reaches the hosts."""

    user: str = Field("root", min_length=1, description="a user name; needs root or sudo -n")
    port: Port = 22
    key: str | None = Field(None, description="the path of a private key; default: ssh's own")
    config_file: str | None = Field(None, description="the path of an ssh_config file")
    known_hosts_file: str | None = Field(None, description="the path of a known_hosts file")
    host_keys: Annotated[Literal["yes", "accept-new"], BeforeValidator(_yes)] = Field(
        "accept-new", description="yes (must be known already) or accept-new (learned once)"
    )


class Host(Section):
    """One machine."""

    address: Address = Field(
        description="the IPv4 address of this host on the fabric, such as 192.168.1.10; "
        "not loopback, not 0.0.0.0, not link-local"
    )
    gpus: int = Field(strict=True, ge=1, le=64, description="the number of GPUs, 1 to 64")
    ssh: str | None = Field(
        None, min_length=1, description="name or address for SSH, if not `address`"
    )
    interface: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,15}$",
        description="the network card that holds `address`; default: found on the host",
    )


class Gpu(Section):
    """The GPU that every host has: vLLM wants them equal."""

    kind: Literal["nvidia", "cpu"] = Field(
        "nvidia", description="nvidia, or cpu (real vLLM and Ray on CPUs, for the lab)"
    )
    model: str = Field("", description="the card's name, such as A100-SXM4-80GB")
    memory: Bytes | None = Field(None, ge=GIB, description="memory of one GPU, such as 80GiB")


class NetworkSection(NetworkAdditions):
    """Who may reach what."""

    link_gbit_s: float | None = Field(
        None, gt=0, le=10000, description="the fabric's speed in Gbit/s each way, such as 25"
    )

    fabric: Network = Field(description="the network of the hosts' addresses: 192.168.1.0/24")
    api_from: list[Network] = Field(
        min_length=1, description="networks that may use the API, such as [10.0.0.0/8]"
    )
    ssh_from: list[Network] = Field(
        default_factory=lambda: [IPv4Network("0.0.0.0/0")],
        min_length=1,
        description="networks that may use SSH; default: all",
    )


class Parallel(Section):
    """How the model is cut: tensor inside a host, pipeline between hosts, or copies of it."""

    tensor: Count = 1
    pipeline: Count = 1
    replicas: Count = 1
    several_hosts: Literal["if-needed", "deliberate"] = Field(
        "if-needed", description="if-needed, or deliberate (though one host would hold the model)"
    )
    tensor_across_hosts: Literal["no", "deliberate"] = Field(
        "no", description="no, or deliberate (a measured InfiniBand fabric, say)"
    )


class Image(Section):
    """The container image with vLLM and Ray, the same on every host."""

    reference: str = Field(
        pattern=r"^[a-z0-9][a-zA-Z0-9._:/-]*(@sha256:[0-9a-f]{64})?$",
        description="NAME:TAG, or NAME@sha256:… to pull from a registry",
    )
    archive: str | None = Field(
        None, description="a `docker save` archive on this machine, sent to the hosts"
    )
    vllm: Version = Field(description="the version of vLLM inside, such as 0.33.0")
    ray: Version = Field(description="the version of Ray inside, such as 2.56.1")


class Memory(MemoryAdditions):
    """Host memory that Ray and vLLM share between processes."""

    shm: Bytes = Field(32 * GIB, ge=64 * 2**20, description="/dev/shm, 64MiB or more")
    object_store: Bytes = Field(
        2 * GIB, ge=75 * 2**20, description="Ray's object store, 75MiB or more, within shm"
    )


class Limits(Section):
    """Resource limits of the containers; `inherit` leaves Docker's."""

    memlock: Literal["unlimited", "inherit"] = Field(
        "unlimited", description="unlimited (RDMA pins memory) or inherit"
    )
    nofile: int = Field(
        1048576, strict=True, ge=1024, description="open files of a container, 1024 or more"
    )
    stack: Bytes | None = Field(
        64 * 2**20, ge=2**20, description="stack of a thread, such as 64MiB; null: Docker's"
    )


class Ports(Section):
    """Every port that Ray and the weights' fan-out listen on.

    Below the ephemeral range, so that nobody takes one first.
    """

    gcs: Port = 6379
    node_manager: Port = 6380
    object_manager: Port = 6381
    agent_grpc: Port = 6382
    agent_http: Port = 6383
    runtime_env: Port = 6384
    metrics: Port = 6385
    autoscaler_metrics: Port = 6386
    dashboard_metrics: Port = 6387
    images: Port = 6388
    dashboard: Port = 8265
    client: Port = 10001
    weights_first: Port = 6390
    weights_last: Port = 6399
    worker_first: Port = 20000
    worker_last: Port = 20999


class Ray(Section):
    """Ray's own settings."""

    cpus: Count | None = Field(
        None,
        description="CPUs that Ray counts on a host; default: one for each GPU. "
        "Ray starts as many idle workers",
    )
    drain_timeout_s: Seconds = 30


class Serve(Section):
    """The API server."""

    port: Port = 8000
    args: dict[str, ArgumentValue] = Field(
        default_factory=dict,
        description="arguments of `vllm serve` without the dashes, such as max-model-len: 8192",
    )
    env: dict[
        Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")],
        Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")] | int,
    ] = Field(default_factory=dict, description="environment variables, NAME: value on one line")
    full_requests: float | None = Field(
        None, gt=0, le=1e9, description="requests of full length that must fit at once, such as 16"
    )
    start_timeout_s: Seconds = 3600
    shutdown_timeout_s: int = Field(
        30, strict=True, ge=0, description="seconds that running requests may take at a stop"
    )
    hang_timeout_s: int = Field(
        180, strict=True, ge=30,
        description="seconds without any progress after which the watchdog restarts vLLM, 30 or "
        "more; vLLM's own limit of a step is 300",
    )  # fmt: skip


class Upgrade(Section):
    """How a switch to another image, Ray or set of arguments is judged."""

    measure_s: int = Field(
        10, strict=True, ge=0, le=600,
        description="seconds of load before and after a switch, 0 to 600; 0: a completion suffices",
    )  # fmt: skip
    measure_requests: int = Field(
        8, strict=True, ge=1, le=1024, description="requests at once while measuring, 1 to 1024"
    )
    slower_percent: float = Field(
        20, gt=0, le=100,
        description="how much slower, in tokens per second, a switch may leave vLLM, such as 20",
    )  # fmt: skip
    join_timeout_s: int = Field(
        600, strict=True, ge=30, description="seconds until Ray shows every GPU, 30 or more"
    )
    keep: int = Field(
        3, strict=True, ge=2, le=20, description="generations that hosts keep, 2 to 20"
    )


class SecretSource(Section):
    """Where a secret comes from. Exactly one key."""

    env: str | None = Field(None, description="the name of an environment variable")
    file: str | None = Field(None, description="the path of a file on this machine")
    command: str | None = Field(None, description="a command that prints it")


Secret = Literal["generate"] | SecretSource
_SECRET = "generate, or one of {env: NAME}, {file: PATH}, {command: LINE}"  # noqa: S105


class Secrets(Section):
    """What must not be read by others."""

    ray_token: Secret = Field("generate", description=_SECRET)
    api_key: Secret | Literal["none"] = Field("generate", description=f"{_SECRET}, or none")
    hub_token: SecretSource | Literal["none"] = Field(
        "none",
        description="one of {env: NAME}, {file: PATH}, {command: LINE}, or none; read only where "
        "weights are downloaded, never sent to a host",
    )


class Description(Section):
    """A whole cluster."""

    cluster: Name = Field(description="a name of lower-case letters, digits and dashes")
    ssh: Ssh = Ssh()
    hosts: dict[HostName, Host] = Field(
        min_length=1,
        description="host names (lower-case letters, digits, dashes; not digits alone, "
        "not localhost), each with its address and gpus",
    )
    head: str = Field(description="the name of the host that runs the Ray head and the API")
    workers: list[str] | None = Field(
        None, description="the names of the other hosts; default: all but the head"
    )
    gpu: Gpu = Gpu()
    network: NetworkSection
    parallel: Parallel | Literal["auto"] = Field(
        description="auto, or a mapping with tensor, pipeline, replicas, several_hosts"
    )
    image: Image
    model: Model
    weights: Weights = Weights()
    memory: Memory = Memory()
    limits: Limits = Limits()
    ray: Ray = Ray()
    ports: Ports = Ports()
    serve: Serve = Serve()
    upgrade: Upgrade = Upgrade()
    secrets: Secrets = Secrets()
    storage: Storage = Storage()
    names: Names = Names()
    driver: Driver = Driver()
    toolkit: Toolkit = Toolkit()
    docker: Docker = Docker()
    kernel: Kernel = Kernel()
    clock: Clock = Clock()
    rdma: Rdma | None = Field(None, description="{devices: [mlx5_0]}; default: no RDMA")
    install: Install | None = Field(
        None,
        description="{system, hosts}: what `vllm-cluster seed` tells an installer; default: none",
    )


class Cluster(BaseModel):
    """A checked description and the file it came from; relative paths start at that file."""

    model_config = ConfigDict(frozen=True)
    file: Path
    description: Description
    lines: dict[tuple[str | int, ...], int] = Field(default_factory=dict)

    def problem(self, *path: str, found: str, accepted: str) -> Problem:
        """A problem with the value at `path`, with its line."""
        line = next((self.lines[p] for p in _up(path) if p in self.lines), 0)
        return Problem(line, ".".join(path), found, accepted)

    def with_description(self, description: Description) -> Cluster:
        """The same file, another description: `parallel: auto` settled, say."""
        return self.model_copy(update={"description": description})

    def local(self, path: str) -> Path:
        """A path of this machine that the description names: `~` and relative to the file."""
        try:
            return (self.file.parent / Path(path).expanduser()).resolve()
        except RuntimeError:
            found, accepted = f"{path!r}, whose user is unknown here", "a path on this machine"
            raise DescriptionError(self.file, [Problem(0, "", found, accepted)]) from None


def _up(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """`path` and its parents, the nearest first."""
    return (path[:length] for length in range(len(path), 0, -1))
