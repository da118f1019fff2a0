"""The network card of a host, the ways to the others, and RDMA where it is declared."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import files, network
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.plan import paths
from vllm_cluster.plan.hardware import RDMA_ENVIRONMENT
from vllm_cluster.plan.network import Card
from vllm_cluster.steps import here
from vllm_cluster.steps.render import plain, render

_SCRIPT = f"{paths.SCRIPTS}/rdma-env"
_TEMPLATE = f"{paths.UNITS}/rdma.conf"
# Where no setting names a port vLLM takes one of these (net.ipv4.ip_local_port_range).
_EPHEMERAL = 60999


@deploy("Network card")
def card_step() -> None:
    """Check the card that holds the fabric address; look RDMA's index up at every start."""
    description, this = here.known().cluster.description, here.this()
    rdma = description.rdma
    network.card_is_right(
        name="Check the card that holds the fabric address",
        card=Card(
            address=this.address,
            fabric=description.network.fabric,
            interface=this.interface,
            peers=_peers(),
            devices=tuple(rdma.devices) if rdma else (),
        ),
    )
    if rdma is not None and rdma.gid_index == "auto":
        files.place(name="Look the RDMA index up at every start", wanted=_rdma(rdma.devices))


@deploy("Paths")
def paths_step() -> None:
    """Prove that hosts reach each other, once every firewall stands."""
    address, peers = here.this().address, _peers()
    ports = [here.known().cluster.description.ports.worker_last, _EPHEMERAL]
    if peers:
        network.awaited(name="Let the other hosts dial", address=address, ports=ports)
    network.paths_are_open(
        name="Reach every other host, on any port, with whole packets",
        address=address,
        peers=peers,
        ports=ports,
    )


def _peers() -> dict[str, str]:
    own = here.this().name
    return {name: host.address for name, host in here.plan().hosts.items() if name != own}


def _rdma(devices: list[str]) -> dict[str, File | Directory]:
    command = [_SCRIPT, "/sys/class/infiniband", RDMA_ENVIRONMENT, *devices]
    text = render(_TEMPLATE, plan=here.plan(), command=command)
    wanted: dict[str, File | Directory] = {_SCRIPT: File(plain(_SCRIPT), mode="755")}
    for unit in here.this().units:
        wanted[f"{paths.UNITS}/{unit}.service.d/rdma.conf"] = File(text)
    return wanted
