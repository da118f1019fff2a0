"""Ray: the head, every worker, every GPU, one version and one token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks.ray_starting import OK, coming, other_node, ray_unit
from vllm_cluster.doctor.down import disabled, evidence, start, state_words
from vllm_cluster.doctor.finding import Finding, Step, by_hand, on
from vllm_cluster.doctor.starting import STARTING_S, starting
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import paths


def units(case: Case) -> Iterator[Finding]:
    """The units of Ray: running; where not, what they said last."""
    for host, facts in case.deployed():
        for name in ("ray-head", "ray-worker"):
            unit = facts.unit(f"{name}.service")
            if name not in host.containers or unit.running:
                continue
            if unit.load in {"masked", "not-found"} or disabled(unit):
                continue
            if starting(facts, unit):
                continue  # see ray_starting
            identity = "ray.head-down" if name == "ray-head" else "ray.worker-down"
            yield Finding(
                identity, "ray", host.name,
                expected=f"{unit.name} running",
                found=state_words(facts, unit),
                evidence=evidence(facts, unit),
                # vLLM is stopped with its head, and does not come back with it by itself.
                fix=start(case, host.name, facts, unit,
                          also=" vllm.service" * (name == "ray-head")),
            )  # fmt: skip


def versions(case: Case) -> Iterator[Finding]:
    """One Ray, one vLLM, one Python to the patch, inside every container: Ray refuses others
    (https://github.com/ray-project/ray/issues/44063)."""
    planned = {"ray": case.plan.ray_version, "vllm": case.plan.vllm_version}
    ours = [
        (host.name, name, inside)
        for host, facts in case.deployed()
        for name, inside in facts.docker.inside.items()
        if name in host.containers and not in_place.other_image(case, facts)
    ]
    for package, version in planned.items():
        found = [(host, name, inside.packages.get(package, "")) for host, name, inside in ours]
        found = [(host, name, text.split("+")[0]) for host, name, text in found if text]
        everywhere = {text for _, _, text in found}
        for host, name, text in found:
            if text != version:
                yield Finding(
                    "ray.version", "ray", host,
                    expected=f"{package} {version} in {name}, as {case.description} says",
                    found=text,
                    evidence=f"{name}: {package}-{text}.dist-info",
                    fix=_as_described(case, package, text) if len(everywhere) == 1
                    else on(host, f"systemctl restart --no-block {name}.service"),
                    about=tuple(n for n in case.plan.hosts if n != host),
                )  # fmt: skip


def _as_described(case: Case, package: str, found: str) -> tuple[Step, ...]:
    # The image itself has it: no restart makes it another one.
    return by_hand(f"In {case.description}, image.{package}: {found}, or name an image with the "
                   "version that is there")  # fmt: skip


def pythons(case: Case) -> Iterator[Finding]:
    """The same Python on every host. What most have is right; of two, what the head has."""
    found = {host.name: python for host, facts in case.deployed() if (python := _python(facts))}
    counts = Counter(found.values())
    at_head = found.get(case.plan.head, "")
    usual = max(counts, key=lambda python: (counts[python], python == at_head), default="")
    for name, python in found.items():
        if python != usual:
            unit = "ray-head" if name == case.plan.head else "ray-worker"
            yield Finding(
                "ray.python", "ray", name,
                expected=f"Python {usual}, as on the other hosts",
                found=python,
                evidence=f"{unit}: Python {python}",
                fix=on(name, f"systemctl restart --no-block {unit}.service"),
                about=tuple(n for n in case.plan.hosts if n != name),
            )  # fmt: skip


def _python(facts: HostFacts) -> str:
    return next((i.python for n, i in facts.docker.inside.items() if n.startswith("ray-")), "")


def token(case: Case) -> Iterator[Finding]:
    """The same token everywhere: Ray refuses a worker with another (InvalidAuthToken)."""
    found = {
        host.name: facts.secrets[paths.RAY_TOKEN]
        for host, facts in case.deployed()
        if paths.RAY_TOKEN in facts.secrets
    }
    wanted = case.secrets.get(paths.RAY_TOKEN) or found.get(case.plan.head)
    for name, digest in found.items():
        if wanted is not None and digest != wanted:
            yield Finding(
                "ray.token", "ray", name,
                expected="the cluster's Ray token, the same on every host",
                found="another one",
                evidence=f"{paths.RAY_TOKEN}: digests differ (salted: {digest}, {wanted})",
                fix=case.run_deploy(),
                about=tuple(n for n in case.plan.hosts if n != name),
            )  # fmt: skip


def dashboard(case: Case) -> Iterator[Finding]:
    """The head's dashboard answers: the GPU count before vLLM's start comes from there."""
    head = case.head
    if head is None or case.plan.backend != "ray" or not head.unit("ray-head.service").running:
        return
    answer = head.ray.answer
    if answer.status != OK and not coming(case, case.plan.hosts[case.plan.head]):
        yield Finding(
            "ray.dashboard", "ray", case.plan.head,
            expected="the list of Ray's nodes from the dashboard",
            found=f"HTTP {answer.status}" if answer.status else answer.words,
            evidence=" ".join(answer.body.split())[:200],
            fix=on(case.plan.head, "systemctl restart --no-block ray-head.service"),
        )  # fmt: skip


def nodes(case: Case) -> Iterator[Finding]:
    """Every host of the plan is a living node, with its GPUs, and nobody else is."""
    head = case.head
    if head is None or head.ray.answer.status != OK:
        return
    alive = {node.address: node for node in head.ray.nodes if node.alive}
    for host in case.plan.hosts.values():
        node = alive.get(host.address)
        unit = "ray-head.service" if host.role == "head" else "ray-worker.service"
        restart = f"systemctl restart --no-block {unit}"
        if node is None and (coming(case, case.plan.hosts[case.plan.head]) or coming(case, host)):
            continue
        if node is None:
            dead = [n.message for n in head.ray.nodes if n.address == host.address and n.message]
            yield Finding(
                "ray.node-missing", "ray", host.name,
                expected=f"{host.name} ({host.address}) alive in Ray's list of nodes",
                found="dead" if dead else "not there",
                evidence=" ".join(dead[-1].split())[:300] if dead
                else f"alive: {', '.join(alive) or 'none'}",
                fix=on(host.name, restart),
            )  # fmt: skip
        elif node.gpus != host.gpus and not (other_node(case, host) or coming(case, host)):
            yield Finding(
                "ray.gpus", "ray", host.name,
                expected=f"{host.gpus} GPUs of {host.name} in Ray",
                found=f"{node.gpus}",
                evidence=f"node {node.node_id[:12]}: GPU {node.gpus}",
                fix=on(host.name, restart),
            )  # fmt: skip
    planned = {host.address for host in case.plan.hosts.values()}
    for address in alive.keys() - planned:
        yield Finding(
            "ray.node-foreign", "ray", case.plan.head,
            expected="the plan's hosts alone in Ray",
            found=f"{address} is a node as well; vLLM may place ranks there",
            evidence=f"alive: {', '.join(sorted(alive))}",
            fix=on(case.plan.head, "systemctl restart --no-block ray-head.service"),
        )  # fmt: skip


def raylets(case: Case) -> Iterator[Finding]:
    """The raylet behind a running unit answers: `ray start --block` may outlive it."""
    for host, facts in case.deployed():
        unit = ray_unit(host, facts)
        if case.plan.backend != "ray" or not unit.running:
            continue
        since_s = facts.clock_s - unit.active_since_s
        if facts.raylet.status != OK and since_s > STARTING_S:
            said = facts.raylet.words or re.sub(r"\s+", " ", facts.raylet.body)[:200]
            yield Finding(
                "ray.raylet", "ray", host.name,
                expected="an answer of the raylet's health check",
                found=f"{unit.name} is active, but its raylet does not answer",
                evidence=f"GET /api/local_raylet_healthz: {said}",
                fix=on(host.name, f"systemctl restart --no-block {unit.name}"),
            )  # fmt: skip


CHECKS = (units, versions, pythons, token, dashboard, nodes, raylets)
