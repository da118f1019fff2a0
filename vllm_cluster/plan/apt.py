"""Repositories of packages: the vendors' own, or the mirrors that a description names.

The fingerprints are those of the vendors' installation guides: NVIDIA's key for the container
toolkit (nvidia.github.io/libnvidia-container/gpgkey), NVIDIA's key for CUDA and drivers
(3bf863cc.pub), Docker's release key (download.docker.com/linux/debian/gpg).
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_cluster.spec.hosts_model import AptSource

KEYRINGS = "/etc/apt/keyrings"
SOURCES = "/etc/apt/sources.list.d"

_TOOLKIT = "https://nvidia.github.io/libnvidia-container"
_TOOLKIT_KEY = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
_CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
_CUDA_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
_DOCKER = "https://download.docker.com/linux"
_DOCKER_KEY = "9DC858229FC7DD38854AE2D88D81803C0EBFCD88"
# NVIDIA names the folder of arm64 servers after their standard.
_CUDA_ARCHITECTURES = {"amd64": "x86_64", "arm64": "sbsa"}


@dataclass(frozen=True)
class System:
    """A distribution, from /etc/os-release and dpkg: debian 12 bookworm amd64."""

    id: str
    version: str
    codename: str
    architecture: str


@dataclass(frozen=True)
class Repository:
    """A repository as a host gets it. `key_url` is fetched there, and judged by `fingerprint`."""

    name: str
    uri: str
    suite: str
    components: tuple[str, ...]
    key_url: str
    fingerprint: str

    @property
    def keyring(self) -> str:
        """The file that holds the key alone."""
        return f"{KEYRINGS}/vllm-cluster-{self.name}.asc"

    @property
    def sources(self) -> str:
        """The file that names the repository."""
        return f"{SOURCES}/vllm-cluster-{self.name}.sources"

    def text(self, cluster: str) -> str:
        """The content of that file (deb822, sources.list(5))."""
        components = f"Components: {' '.join(self.components)}\n" if self.components else ""
        return (
            f"# Managed by vllm-cluster for {cluster}. Changes here are undone by the next run.\n"
            f"Types: deb\nURIs: {self.uri}\nSuites: {self.suite}\n{components}"
            f"Signed-By: {self.keyring}\n"
        )


def toolkit(source: AptSource | None, system: System) -> Repository:
    """Where NVIDIA's container toolkit comes from: one repository for every distribution."""
    uri = f"{_TOOLKIT}/stable/deb/{system.architecture}"
    vendor = Repository("nvidia-toolkit", uri, "/", (), f"{_TOOLKIT}/gpgkey", _TOOLKIT_KEY)
    return _mirrored(vendor, source)


def cuda(source: AptSource | None, system: System) -> Repository:
    """Where NVIDIA's driver comes from: one repository a release (debian12, ubuntu2404)."""
    folder = f"{system.id}{system.version.replace('.', '')}"
    machine = _CUDA_ARCHITECTURES.get(system.architecture, system.architecture)
    uri = f"{_CUDA}/{folder}/{machine}"
    vendor = Repository("nvidia-driver", uri, "/", (), f"{uri}/3bf863cc.pub", _CUDA_KEY)
    return _mirrored(vendor, source)


def docker(source: AptSource | None, system: System) -> Repository:
    """Where docker-ce comes from."""
    uri = f"{_DOCKER}/{system.id}"
    vendor = Repository("docker", uri, system.codename, ("stable",), f"{uri}/gpg", _DOCKER_KEY)
    return _mirrored(vendor, source)


def _mirrored(vendor: Repository, source: AptSource | None) -> Repository:
    if source is None:
        return vendor
    parts = tuple(source.components)
    name = vendor.name
    return Repository(name, source.uri, source.suite, parts, source.key, source.fingerprint)


def named_elsewhere(repository: Repository, lines: list[tuple[str, str]], architecture: str) -> str:
    """The file of the user's that names this repository already; empty when none does.

    Two entries with different Signed-By make apt refuse all sources (`Conflicting values set
    for option Signed-By`), so theirs stays and serves.
    """
    uri = repository.uri.rstrip("/")
    for file, line in lines:
        words = line.replace("$(ARCH)", architecture).split()
        if file != repository.sources and uri in (word.rstrip("/") for word in words):
            return file
    return ""
