"""Ray that has only just begun to start, or to end: it comes by itself."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand
from vllm_cluster.doctor.first_cause import of_this_start
from vllm_cluster.doctor.starting import STARTING_S, lately, since, starting, stopped
from vllm_cluster.facts.doctor.model import HostFacts, Unit
from vllm_cluster.plan import HostPlan
from vllm_cluster.plan.containers import VLLM

OK = 200


def ray_unit(host: HostPlan, facts: HostFacts) -> Unit:
    """The unit of Ray on a host."""
    return facts.unit("ray-head.service" if host.role == "head" else "ray-worker.service")


def coming(case: Case, host: HostPlan) -> str:
    """How Ray of a host is only just coming; empty where it is there, or should be by now."""
    facts = case.facts.get(host.name)
    if case.plan.backend != "ray" or facts is None or not (facts.whole and facts.deployed):
        return ""
    unit = ray_unit(host, facts)
    young = starting(facts, unit)
    if young and not unit.running:
        return since(facts, unit)
    if young and (lacks := _lacks(case, host)):
        return f"{since(facts, unit)}; {lacks}"
    return _lost(case, host) if unit.running else ""


def _lacks(case: Case, host: HostPlan) -> str:
    """What a unit that runs has not brought yet. A head's list fills as its workers come."""
    head = case.head
    if head is None:
        return ""
    if head.ray.answer.status != OK:
        return "its dashboard does not answer yet" if host.role == "head" else ""
    there = {node.address: node.gpus for node in head.ray.nodes if node.alive}
    awaited = case.plan.hosts.values() if host.role == "head" else (host,)
    missing = [each.name for each in awaited
               if each.address not in there and not _stopped(case, each)]  # fmt: skip
    if missing:
        return f"not in Ray's list of nodes yet: {', '.join(missing)}"
    fewer = there.get(host.address, host.gpus) != host.gpus and not other_node(case, host)
    return f"{there[host.address]} of its {host.gpus} GPUs in Ray yet" if fewer else ""


def other_node(case: Case, host: HostPlan) -> bool:
    """Whether Ray's unit there is of another generation than is described."""
    facts = case.facts.get(host.name)
    return facts is not None and any(
        in_place.other_unit(container, facts)
        for name, container in host.containers.items()
        if name != VLLM
    )


def _stopped(case: Case, host: HostPlan) -> bool:
    facts = case.facts.get(host.name)
    return facts is not None and facts.whole and stopped(ray_unit(host, facts))


def _lost(case: Case, host: HostPlan) -> str:
    """A node that died a moment ago: its unit is about to end with it, and starts again."""
    head = case.head
    if head is None:
        return ""
    mine = [node for node in head.ray.nodes if node.address == host.address]
    ended = [node for node in mine if lately(head, node.ended_s)]
    if not ended or any(node.alive for node in mine):
        return ""
    return f"its node died {head.clock_s - ended[-1].ended_s:.0f} s ago"


def starts(case: Case) -> Iterator[Finding]:
    """One finding a host, in the place of those of what is not there yet."""
    for host, facts in case.deployed():
        unit, words = ray_unit(host, facts), coming(case, host)
        if words:
            yield Finding(
                "ray.starting", "ray", host.name,
                expected=f"{unit.name} running, with its node and its GPUs in Ray",
                found=words,
                evidence=of_this_start(unit.log) or f"{unit.name}: {unit.active} {unit.sub}",
                fix=by_hand("Wait; it comes by itself. What is not there after "
                            f"{STARTING_S} s is told with its fix"),
            )  # fmt: skip


CHECKS = (starts,)
