"""What is of the generation in place on a host, where the description is another."""

from __future__ import annotations

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.exec_line import arguments
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import Container, HostPlan, paths
from vllm_cluster.plan.containers import CONFIG_LABEL, VLLM


def units(facts: HostFacts) -> tuple[str, ...]:
    """Its units on this host, without their suffix; nothing where that is not known."""
    now = facts.generations.serving
    return now.units.get(facts.name, ()) if now is not None else ()


def lacks(host: HostPlan, facts: HostFacts, unit: str) -> bool:
    """Whether it has no such unit on this host, and the description has."""
    there = units(facts)
    return bool(there) and unit.removesuffix(".service") in {*host.units} - {*there}


def other_image(case: Case, facts: HostFacts) -> bool:
    """Whether it is of another image than is described, which comes with the deploy."""
    now = facts.generations.serving
    return now is not None and now.image not in {"", case.plan.image}


def other_model(case: Case, facts: HostFacts) -> bool:
    """Whether it has its model elsewhere; the one described comes with the deploy."""
    now = facts.generations.serving
    return now is not None and now.model not in {"", case.plan.model_path}


def other_unit(container: Container, facts: HostFacts) -> bool:
    """Whether a container's unit is another than is described, and just as it was deployed."""
    as_kept = facts.as_kept(f"{paths.UNITS}/{container.name}.service")
    return as_kept and difference(container, facts) is not None


def other_api(case: Case, host: HostPlan, facts: HostFacts) -> bool:
    """Whether vLLM in place has another name for its model, or another port, than doctor asks."""
    container = host.containers[VLLM]
    if not other_unit(container, facts):
        return False
    asked = {f"--served-model-name={case.plan.model_name}", f"--port={case.plan.api_port}"}
    return not asked <= {*_words(container, facts)}


def difference(container: Container, facts: HostFacts) -> tuple[str, str] | None:
    """What of a container's command is planned and not in its unit, and what is there instead."""
    found = _words(container, facts)
    return _first(container.run(), found) if found else None


def _words(container: Container, facts: HostFacts) -> list[str]:
    text = facts.contents.get(f"{paths.UNITS}/{container.name}.service", "")
    return [word for word in arguments(text) if CONFIG_LABEL not in word]


def _first(wanted: tuple[str, ...], found: list[str]) -> tuple[str, str] | None:
    """The first words that differ: what is wanted and what is there."""
    if list(wanted) == found:
        return None
    missing = [word for word in wanted if word not in found]
    extra = [word for word in found if word not in wanted]
    return (" ".join(missing[:3]), " ".join(extra[:3])) if missing or extra else ("its order", "")
