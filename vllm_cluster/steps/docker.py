"""Docker: configured first, then installed, so that it starts once with the right settings."""

from typing import Any

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import daemon
from vllm_cluster.plan import apt
from vllm_cluster.plan.apt import Repository, System
from vllm_cluster.spec.hosts_model import DockerLog
from vllm_cluster.steps import here
from vllm_cluster.steps.render import render


@deploy("Docker")
def docker_step() -> None:
    """Docker of the distribution, unless another is there or asked for; daemon.json merged."""
    plan, docker = here.plan(), here.known().cluster.description.docker
    root = docker.data_root
    daemon.configured(
        name="Merge our settings into Docker's daemon.json, and install Docker",
        wanted=daemon.Docker(
            cluster=plan.cluster,
            settings={} if root is None else {"data-root": root},
            defaults=_log(docker.log),
            drop_in=None if root is None else render(daemon.DROP_IN, plan=plan, data_root=root),
            repository=_docker_ce if docker.packages == "docker" else None,
            nvidia=plan.accelerator == "nvidia",
        ),
    )
    daemon.running(
        name="Let Docker run with its configuration, now and at every boot",
        drop_in=root is not None,
    )


def _docker_ce(system: System) -> Repository:
    return apt.docker(here.known().cluster.description.docker.source, system)


def _log(log: DockerLog) -> dict[str, Any]:
    """Docker takes numbers as text here. journald rotates by itself and knows no sizes."""
    if log.driver == "journald":
        return {"log-driver": "journald"}
    sizes = {"max-size": log.max_size, "max-file": str(log.max_file)}
    return {"log-driver": log.driver, "log-opts": sizes}
