"""What NCCL and gloo read: the card, the address. Wrong here "starts and hangs" later."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks.network import card_of
from vllm_cluster.doctor.finding import Finding, Step, on
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import HostPlan, environment, paths
from vllm_cluster.plan.signs import Plane

_CARDS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_OWN = (*_CARDS, "VLLM_HOST_IP")


def file(case: Case) -> Iterator[Finding]:
    """cluster.env as the plan has it, line by line."""
    for host, facts in case.deployed():
        card = card_of(host, facts)
        wanted, found = planned(case, host, facts), _there(facts)
        wrong = changed(case, host, facts)
        if not wrong or facts.as_kept(paths.ENVIRONMENT):
            continue  # of another generation: see generation
        name = min(wrong, key=lambda n: (n not in _OWN, n))
        plane: Plane = "collective" if name in _OWN else "vllm"
        yield Finding(
            f"{plane}.environment-changed", plane, host.name,
            expected=f"{name}={wanted[name]}" if name in wanted else f"no {name}",
            found=f"{name}={found[name]}" if name in found else f"no {name}",
            evidence=f"{paths.ENVIRONMENT}: {len(wrong)} lines differ: {', '.join(sorted(wrong))}",
            fix=(*case.run_deploy(), *_restarts(host, facts, card)),
        )  # fmt: skip


def changed(case: Case, host: HostPlan, facts: HostFacts) -> list[str]:
    """The variables that cluster.env has otherwise than planned."""
    wanted, found = planned(case, host, facts), _there(facts)
    if not wanted or paths.ENVIRONMENT not in facts.contents:
        return []
    return [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]


def planned(case: Case, host: HostPlan, facts: HostFacts) -> dict[str, str]:
    """What cluster.env shall have; nothing where the card is not known."""
    card = card_of(host, facts)
    return environment.own(host.address, card) | case.plan.environment if card else {}


def _there(facts: HostFacts) -> dict[str, str]:
    lines = facts.contents.get(paths.ENVIRONMENT, "").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


def _restarts(host: HostPlan, facts: HostFacts, card: str) -> tuple[Step, ...]:
    """Containers that were started with the wrong file; the deploy does not know of those."""
    wrong = [
        f"{name}.service"
        for name, inside in facts.docker.inside.items()
        if name in host.containers
        and any(_differences(host, facts, name, card, inside.environment))
    ]
    return on(host.name, f"systemctl restart --no-block {' '.join(wrong)}") if wrong else ()


def running(case: Case) -> Iterator[Finding]:
    """The environment of the running containers: card and address of their own host."""
    for host, facts in case.deployed():
        card = card_of(host, facts)
        for name, inside in facts.docker.inside.items():
            if name not in host.containers or not card:
                continue
            yield from _differences(host, facts, name, card, inside.environment)


def _differences(
    host: HostPlan, facts: HostFacts, container: str, card: str, found: dict[str, str]
) -> Iterator[Finding]:
    wanted = environment.own(host.address, card)
    for variable in _OWN:
        value = found.get(variable)
        if value == wanted.get(variable) or (value is None and variable not in wanted):
            continue
        address = variable == "VLLM_HOST_IP"
        known = ", ".join(sorted(facts.links))
        missing = (value or "").lstrip("=") not in facts.links and not address
        yield Finding(
            "collective.address" if address else "collective.card", "collective", host.name,
            expected=f"{variable}={wanted[variable]} in {container}",
            found=f"{variable}={value}" + (f": no such card; there are {known}" if missing else ""),
            evidence=f"/proc/PID/environ of {container}: {variable}={value}",
            fix=on(host.name, f"systemctl restart --no-block {container}.service"),
        )  # fmt: skip
        return


CHECKS = (file, running)
