"""Hosts of the cluster reach each other; others reach SSH and the API; nothing else."""

from dataclasses import replace

from pyinfra.api.deploy import deploy
from pyinfra.context import host

from vllm_cluster.facts.firewall import POLICY
from vllm_cluster.operations import files, firewall, units
from vllm_cluster.operations.files import File
from vllm_cluster.operations.firewall import Rules
from vllm_cluster.operations.generations import seen
from vllm_cluster.operations.units import Unit
from vllm_cluster.plan import Allow, generations, paths
from vllm_cluster.plan.generations import Kept
from vllm_cluster.steps import here
from vllm_cluster.steps.render import plain, render

UNIT = paths.FIREWALL_UNIT
AFTER_NFTABLES = f"{paths.UNITS}/nftables.service.d/vllm-cluster.conf"


@deploy("Firewall")
def firewall_step() -> None:
    """Bring the rules in force, and again at every boot before Docker starts."""
    unit = f"{paths.UNITS}/{UNIT}"
    files.place(
        name="Write the firewall's unit and loader",
        wanted={
            firewall.LOADER: File(plain(firewall.LOADER), mode="755"),
            unit: File(render(unit, plan=here.plan(), paths=paths)),
            AFTER_NFTABLES: File(render(AFTER_NFTABLES, plan=here.plan(), paths=paths)),
        },
    )
    # First: a host that reboots while rules are tried must come up with those of before.
    units.active(name="Load what was confirmed at every boot", units=[Unit(UNIT)])
    firewall.enforced(
        name="Let in the cluster, SSH and the API, and nobody else",
        rules=_RULES,
        way_back_s=_way_back_s(),
        moves=_moves,
    )


@deploy("Former firewall")
def former_firewall_step() -> None:
    """Close what only a former role needed, once what it ran has ended."""
    firewall.narrowed(
        name="Let in nobody for a role that has moved",
        rules=_RULES,
        way_back_s=_way_back_s(),
        moved=_moves,
    )


def _way_back_s() -> int:
    return here.known().cluster.description.network.way_back_s


def _moves() -> bool:
    """By what served here when the run began."""
    plan = here.plan()
    return generations.moves(seen(host.state).get(host.name, Kept()), plan.head, plan.hosts)


def _nft(allow: tuple[Allow, ...]) -> str:
    ssh = next(rule for rule in allow if rule.comment == "SSH")
    return render(
        paths.FIREWALL,
        plan=here.plan(),
        allow=allow,
        ssh_ports=ssh.ports,
        ssh_over_ipv6="0.0.0.0/0" in ssh.sources,
    )


def _firewalld(allow: tuple[Allow, ...]) -> str:
    return render(POLICY, plan=here.plan(), allow=allow)


def _allow(ssh_ports: tuple[int, ...]) -> tuple[Allow, ...]:
    return tuple(_with_ports(rule, ssh_ports) for rule in here.this().allow)


def _with_ports(rule: Allow, ssh_ports: tuple[int, ...]) -> Allow:
    """SSH stays open on every port that sshd really listens on, declared or not."""
    if rule.comment != "SSH":
        return rule
    return replace(rule, ports=tuple(sorted({*rule.ports, *ssh_ports})))


_RULES = Rules(allow=_allow, nft=_nft, firewalld=_firewalld)
