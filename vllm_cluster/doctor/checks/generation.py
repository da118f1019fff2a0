"""What lies on the hosts is of another generation than the description's, and nobody changed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import collective
from vllm_cluster.doctor.finding import Finding, Step, by_hand
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import HostPlan, paths
from vllm_cluster.plan.containers import VLLM
from vllm_cluster.plan.generations import Kept, Record, given_up, serving

_FAILED = {"failed": "failed", "left": "was left", "interrupted": "was interrupted"}


def other(case: Case) -> Iterator[Finding]:
    """One finding for the cluster: an upgrade that was refused, failed or left, or none yet."""
    seen = {host.name: _difference(case, host, facts) for host, facts in case.deployed()}
    hosts = sorted(
        (name for name, words in seen.items() if words), key=lambda n: n != case.plan.head
    )
    if not hosts:
        return
    kept = {host.name: facts.generations for host, facts in case.deployed()}
    known = {each.id: each for one in kept.values() for each in one.records.values()}
    found, fix = _state(case, kept, known)
    yield Finding(
        "host.other-generation", "host", hosts[0],
        expected=f"the generation that {case.description} describes",
        found=found,
        evidence=seen[hosts[0]],
        fix=fix,
        severity="warning",
        about=tuple(hosts[1:]),
    )  # fmt: skip


def _difference(case: Case, host: HostPlan, facts: HostFacts) -> str:
    """How what is in place on a host differs from the description; empty where it does not."""
    now = facts.generations.serving
    if now is None:
        return ""
    if in_place.other_image(case, facts):
        return f"{now.image} is in place, {case.plan.image} is described"
    if in_place.other_model(case, facts):
        return f"{now.model} is in place, {case.plan.model_path} is described"
    return next(filter(None, _parts(case, host, facts)), "")


def _parts(case: Case, host: HostPlan, facts: HostFacts) -> Iterator[str]:
    for name, container in host.containers.items():
        unit = f"{name}.service"
        if facts.unit(unit).load == "not-found" and in_place.lacks(host, facts, unit):
            yield f"no {unit} is in place on {host.name}, one is described"
        differing = in_place.difference(container, facts)
        if differing and in_place.other_unit(container, facts):
            there, planned = (words or "nothing more" for words in reversed(differing))
            yield f"{unit} has {there}; {planned} is described"
    wrong = collective.changed(case, host, facts)
    if wrong and facts.as_kept(paths.ENVIRONMENT):
        yield f"{paths.ENVIRONMENT}: {', '.join(sorted(wrong))} described otherwise"


def _state(
    case: Case, kept: Mapping[str, Kept], known: Mapping[str, Record]
) -> tuple[str, tuple[Step, ...]]:
    now, mine = known.get(serving(kept, case.plan.head) or ""), known.get(case.generation)
    there = f"{now.text()} is in place" if now is not None else "another is in place"
    given = None if _serves(case) else given_up(kept, _runs(case))
    if now is not None and given is not None:
        there = f"the run goes back from generation {given.number} to {now.text()}"
    if any(one.pending is not None for one in kept.values()):
        return f"{there}, and a switch has not ended", by_hand(
            "Wait; the run ends it, or the hosts by themselves when no run is at work any more"
        )
    if mine is None or mine.status not in _FAILED:
        return f"{there}; the description is another, not deployed yet", case.run_deploy()
    why = f" because {mine.reason}" if mine.reason else ""
    found = f"{there}; the description is generation {mine.number}, " \
        f"which {_FAILED[mine.status]}{why}"  # fmt: skip
    if mine.status == "interrupted":
        return found, case.run_deploy()
    return found, by_hand(
        f"Correct {case.description} and deploy it (here: {case.deploy}); to try it again as it "
        f"is: {case.deploy} --data retry=yes"
    )


def _runs(case: Case) -> dict[str, float]:
    return {host.name: facts.run.since_s for host, facts in case.deployed() if facts.run}


def _serves(case: Case) -> bool:
    return any(facts.unit(f"{VLLM}.service").running for _, facts in case.deployed())


CHECKS = (other,)
