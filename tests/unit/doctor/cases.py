"""Cases for the checks: a recorded sound cluster, and what a test makes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from vllm_cluster.doctor.case import Case, Entry
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import Finding
from vllm_cluster.facts.doctor import HostFacts, parse
from vllm_cluster.facts.doctor.read_gpu import smi
from vllm_cluster.plan import Plan, environment, make_plan, paths
from vllm_cluster.plan.containers import CONFIG_LABEL, labelled
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "doctor"
_LAB = Path(__file__).parents[3] / "inventories" / "lab.yaml"


@cache
def recorded(name: str) -> str:
    """What the script printed on a host of a sound cluster."""
    return (FIXTURES / "sound" / f"{name}.txt").read_text()


@cache
def sound() -> Case:
    """The recorded cluster: no finding."""
    description = load(_LAB).description
    head = recorded("node-a")
    image = re.search(r"^sha256:[0-9a-f]{64}$", head, re.MULTILINE)
    model = re.search(r"^manifest ([0-9a-f]{64})$", head, re.MULTILINE)
    assert image
    assert model
    plan = make_plan(description, image_id=image[0], model_id=ModelId("local-0", model[1]))
    facts = {name: parse(name, recorded(name), arrived_s=_arrival(name)) for name in plan.hosts}
    facts = {name: _as_planned(plan, host) for name, host in facts.items()}
    return Case(
        plan=plan,
        facts=facts,
        fabric=description.network.fabric,
        model_files={n: Entry(s, "0" * 64) for n, s in facts["node-a"].model.sizes.items()},
        model_id=model[1],
        secrets=dict(facts["node-a"].secrets),
    )


def _as_planned(plan: Plan, facts: HostFacts) -> HostFacts:
    """Unit files and environment as today's plan has them; the recording's are of its own day."""
    host = plan.hosts[facts.name]
    contents = dict(facts.contents)
    for unit, container in host.containers.items():
        path = f"{paths.UNITS}/{unit}.service"
        label = re.search(rf"--label={CONFIG_LABEL}=(\w+)", contents[path])
        assert label
        words = " ".join(f'"{_quoted(word)}"' for word in labelled(container, label[1]).run())
        contents[path] = f"[Service]\nExecStart={words}\n"
    values = environment.own(host.address, "fabric0") | plan.environment
    contents[paths.ENVIRONMENT] = "".join(f"{name}={value}\n" for name, value in values.items())
    return replace(facts, contents=contents)


def _quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")


def _arrival(name: str) -> float:
    clock = re.search(r"clock ([\d.]+)", recorded(name))
    assert clock
    return float(clock[1])


def changed(case: Case, host: str, **changes: Any) -> Case:
    """`case` with other facts of one host."""
    facts = replace(case.facts[host], **changes)
    return replace(case, facts={**case.facts, host: facts})


def first(case: Case) -> Finding:
    """Doctor's first line."""
    lines = ordered(findings(case))
    assert lines, "nothing was found"
    assert lines[0][1] is None, "the first line is explained by another"
    return lines[0][0]


def ids(case: Case) -> list[str]:
    """All findings, causes first."""
    return [finding.id for finding, _ in ordered(findings(case))]


def gpu_case(*files: str) -> Case:
    """A cluster of GPU hosts; each host's `nvidia-smi -q -x` from a recorded file."""
    case = sound()
    plan = replace(case.plan, accelerator="nvidia")
    hosts = dict(zip(plan.hosts, files or ("tesla-t4", "tesla-t4"), strict=True))
    facts: dict[str, HostFacts] = {}
    for name, file in hosts.items():
        found = smi((FIXTURES / "nvidia-smi" / f"{file}.xml").read_text())
        devices = frozenset({"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"})
        found = replace(found, devices=devices, loaded=found.driver)
        docker = replace(case.facts[name].docker, runtimes=("nvidia", "runc"))
        facts[name] = replace(case.facts[name], gpus=found, docker=docker)
    return replace(case, plan=plan, facts=facts)


def with_card(case: Case, host: str, **changes: Any) -> Case:
    """`case` with the first GPU of a host changed."""
    gpus = case.facts[host].gpus
    cards = (replace(gpus.cards[0], **changes), *gpus.cards[1:])
    return changed(case, host, gpus=replace(gpus, cards=cards))


def command(case: Case) -> str:
    """The command of the first line's first step."""
    return first(case).fix[0].command
