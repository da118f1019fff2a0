"""What the hosts get beneath Ray and vLLM: names, driver, toolkit, Docker, kernel, clock, RDMA.

Every key has a default: a description without these sections is whole.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from vllm_cluster.spec.types import AbsolutePath, Network

Port = Annotated[int, Field(strict=True, ge=1, le=65535, description="a port, 1 to 65535")]

# First stable release whose runtime takes CDI names for every Docker that Debian 12 to Ubuntu
# 24.04 ship, and that refreshes its CDI specification by itself (1.18 and later).
TOOLKIT_VERSION = "1.19.0-1"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Names(_Section):
    """What the hosts call themselves."""

    hostname: Literal["keep", "set"] = Field(
        "keep", description="keep (a host's own name stays) or set (to its name under hosts)"
    )


class AptSource(_Section):
    """A repository of packages: the vendor's, or a mirror of it."""

    uri: str = Field(
        pattern=r"^(https?|file):/\S+$",
        description="an address such as https://mirror.example.com/nvidia, or file:/srv/mirror",
    )
    suite: str = Field("./", pattern=r"^\S+$", description="the suite; ./ where there is none")
    components: list[str] = Field(default_factory=list, description="components, such as [main]")
    key: str = Field(
        pattern=r"^(https?|file):/\S+$",
        description="the address of the key that signs it; the host fetches it",
    )
    fingerprint: str = Field(
        pattern=r"^[0-9A-F]{40}$",
        description="the key's fingerprint, 40 upper-case hex digits without spaces",
    )


class Driver(_Section):
    """NVIDIA's driver. Checked and held by default; installed only if asked."""

    install: bool = Field(False, strict=True, description="true or false; true needs branch")
    branch: str | None = Field(
        None, pattern=r"^[0-9]{3}$", description='the branch, such as "580"; default: any'
    )
    version: str | None = Field(
        None,
        pattern=r"^[0-9]{3}(\.[0-9]+){1,2}$",
        description='the version, such as "580.95.05"; default: any, the same on all hosts',
    )
    kernel_module: Literal["open", "proprietary"] = Field(
        "open", description="open (Turing and newer; Blackwell knows no other) or proprietary"
    )
    hold: bool = Field(True, strict=True, description="true or false")
    mig: Literal["refuse", "disable"] = Field(
        "refuse", description="what to do where MIG is on: refuse, or disable (it ends its users)"
    )
    source: AptSource | None = Field(
        None, description="{uri, suite, key, fingerprint}; default: NVIDIA's own"
    )


class Toolkit(_Section):
    """NVIDIA's container toolkit."""

    install: bool = Field(True, strict=True, description="true or false")
    version: str = Field(
        TOOLKIT_VERSION, pattern=r"^\d+\.\d+\.\d+\S*$", description="a version, such as 1.19.0-1"
    )
    source: AptSource | None = Field(
        None, description="{uri, suite, key, fingerprint}; default: NVIDIA's own"
    )


class DockerLog(_Section):
    """Logs of containers that say nothing else. Those of the cluster go to the journal."""

    driver: Literal["local", "json-file", "journald"] = Field(
        "local", description="local, json-file or journald"
    )
    max_size: str = Field("50m", pattern=r"^[0-9]+[kmg]$", description="a size, such as 50m")
    max_file: int = Field(3, strict=True, ge=1, description="a whole number, 1 or more")


class Docker(_Section):
    """Docker itself."""

    packages: Literal["distribution", "docker"] = Field(
        "distribution",
        description="distribution (docker.io) or docker (docker-ce); one that is there stays",
    )
    source: AptSource | None = Field(
        None, description="{uri, suite, key, fingerprint} for docker-ce; default: Docker's own"
    )
    data_root: AbsolutePath | None = Field(
        None, description="where images lie: an absolute path; default: Docker's own"
    )
    log: DockerLog = DockerLog()


class Kernel(_Section):
    """Settings of the kernel."""

    sysctl: dict[
        Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[A-Za-z0-9_-]+)+$")],
        Annotated[str, Field(pattern=r"^([!-~]([ -~\t]*[!-~])?)?$")] | int | None,
    ] = Field(
        default_factory=dict,
        description="NAME: value on one line, such as vm.swappiness: 1; null leaves the host's own",
    )


class Clock(_Section):
    """The hosts' clocks."""

    max_offset_s: float = Field(
        0.5, gt=0, le=60, description="seconds that two clocks may differ, such as 0.5"
    )
    servers: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]*$")]] = Field(
        default_factory=list,
        description="names or addresses of time servers; default: the distribution's",
    )
    service: Literal["auto", "none"] = Field(
        "auto", description="auto (systemd-timesyncd where no other is there) or none"
    )


class Rdma(_Section):
    """InfiniBand or RoCE between the hosts."""

    devices: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(:[0-9]+)?$")]] = Field(
        min_length=1, description="names under /sys/class/infiniband, such as [mlx5_0, mlx5_1:1]"
    )
    gid_index: Literal["auto", "unset"] = Field(
        "auto",
        description="auto (RoCE v2 over IPv4, found at every start; it drifts) or unset (NCCL's)",
    )


class Opening(_Section):
    """Ports that others may reach, beside the cluster's own."""

    ports: list[Port] = Field(min_length=1, description="TCP ports, such as [9100]")
    sources: list[Network] = Field(min_length=1, description="networks, such as [10.0.0.5/32]")


class NetworkAdditions(_Section):
    """Who else may reach what."""

    monitoring_from: list[Network] = Field(
        default_factory=list,
        description="networks that may read metrics, such as [10.0.0.5/32]; default: none",
    )
    way_back_s: int = Field(
        45,
        strict=True,
        ge=5,
        le=600,
        description="seconds, 5 to 600, after which new firewall rules are undone unless a new "
        "SSH connection has confirmed them",
    )
    open: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 -]{0,39}$")], Opening] = Field(
        default_factory=dict, description="NAME: {ports: [9100], sources: [10.0.0.5/32]}"
    )


class MemoryAdditions(_Section):
    """How the containers share memory."""

    ipc: Literal["container", "host"] = Field(
        "container",
        description="container (a /dev/shm of its own, of the declared size) or host (the "
        "host's /dev/shm, made that large)",
    )
