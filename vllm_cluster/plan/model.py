"""What a plan consists of. Plain frozen values: everything downstream reads them, nothing adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vllm_cluster.plan.storage import HostStorage
from vllm_cluster.plan.weights import WeightsPlan

Role = Literal["head", "worker"]


@dataclass(frozen=True)
class Rank:
    """One vLLM worker process: rank = pp_rank x TP + tp_rank, within its replica."""

    rank: int
    tp_rank: int
    pp_rank: int
    host: str
    gpu: int
    replica: int = 0


@dataclass(frozen=True)
class PortUse:
    """A port that something listens on, and who may dial it."""

    name: str
    first: int
    last: int
    where: Literal["head", "every host"]
    bind: Literal["loopback", "fabric", "all"]
    allowed: Literal["cluster", "api", "nobody"]


@dataclass(frozen=True)
class Allow:
    """One line of the firewall: these IPv4 sources may reach these TCP ports (none: all)."""

    comment: str
    sources: tuple[str, ...]
    ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class Container:
    """A container as `docker run` gets it. No value here is a secret."""

    name: str
    image: str
    options: tuple[str, ...]
    command: tuple[str, ...]

    def run(self) -> tuple[str, ...]:
        """The whole argument list, `docker` included."""
        return ("/usr/bin/docker", "run", *self.options, self.image, *self.command)


@dataclass(frozen=True)
class HostPlan:
    """What one host gets."""

    name: str
    role: Role
    address: str
    ssh: str
    gpus: int
    interface: str | None
    units: tuple[str, ...]
    containers: dict[str, Container]
    allow: tuple[Allow, ...]
    storage: HostStorage = field(default_factory=HostStorage)


@dataclass(frozen=True)
class Plan:
    """A whole cluster, decided."""

    cluster: str
    backend: Literal["ray", "mp"]
    tensor: int
    pipeline: int
    replicas: int
    head: str
    hosts: dict[str, HostPlan]
    ranks: tuple[Rank, ...]
    ports: tuple[PortUse, ...]
    image: str
    image_pull: str | None
    vllm_version: str
    ray_version: str
    accelerator: Literal["nvidia", "cpu"]
    model_name: str
    weights: WeightsPlan
    shm_bytes: int
    api_port: int
    api_key: bool
    start_timeout_s: int
    shutdown_timeout_s: int
    hang_timeout_s: int
    drain_timeout_s: int
    gcs_address: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def model_path(self) -> str:
        """What vLLM is given."""
        return self.weights.path

    @property
    def weights_directory(self) -> str:
        """The directory of all models, which the containers see at the same place."""
        return self.weights.root

    @property
    def world_size(self) -> int:
        """Number of worker processes of a replica, one GPU each."""
        return self.tensor * self.pipeline

    @property
    def gpus(self) -> int:
        """Number of GPUs that Ray must show before vLLM starts."""
        return sum(host.gpus for host in self.hosts.values())
