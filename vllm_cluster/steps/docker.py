"""Docker: configured first, then installed, so that it starts once with the right settings."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import docker, packages, units
from vllm_cluster.operations.units import Unit


@deploy("Docker")
def docker_step() -> None:
    """Docker of the distribution, unless Docker's own is there; daemon.json merged."""
    docker.configured(name="Merge our settings into Docker's daemon.json", wanted={})
    packages.installed(name="Install Docker", packages=["docker.io|docker-ce"])
    units.active(
        name="Let Docker run with its configuration, now and at every boot",
        units=[Unit("docker.service", files=(docker.DAEMON_JSON,))],
    )
