"""Every host knows every other by its fabric address, and itself not by loopback."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import names
from vllm_cluster.steps import here


@deploy("Names")
def names_step() -> None:
    """Write the block of the cluster's hosts into /etc/hosts."""
    hosts = here.plan().hosts
    names.resolved(
        name="Let every host's name resolve to its fabric address",
        own=here.this().name,
        addresses={name: host.address for name, host in hosts.items()},
    )
