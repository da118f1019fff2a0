"""Every host knows every other by its fabric address, and itself not by loopback."""

from pyinfra.api.deploy import deploy

from vllm_cluster.facts.names import CLOUD_DROP_IN
from vllm_cluster.operations import names
from vllm_cluster.steps import here
from vllm_cluster.steps.render import render


@deploy("Names")
def names_step() -> None:
    """Write the block of the cluster's hosts into /etc/hosts."""
    plan = here.plan()
    set_hostname = here.known().cluster.description.names.hostname == "set"
    names.resolved(
        name="Let every host's name resolve to its fabric address",
        own=here.this().name,
        addresses={name: host.address for name, host in plan.hosts.items()},
        drop_in=render(CLOUD_DROP_IN, plan=plan, set_hostname=set_hostname),
        set_hostname=set_hostname,
    )
