"""Hosts out of namespaces: bare Debian servers with systemd, sshd and a network, on one machine."""

from vllm_cluster.lab.docker_seed import seed_docker
from vllm_cluster.lab.errors import LabError, WrongValueError
from vllm_cluster.lab.host import Host
from vllm_cluster.lab.lab import Lab, down

__all__ = ["Host", "Lab", "LabError", "WrongValueError", "down", "seed_docker"]
