"""`vllm-cluster plan`: ranks, ports, and what every process gets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from vllm_cluster.plan import Plan, make_plan
from vllm_cluster.spec import load


@click.command(help="Show what follows from the description FILE: ranks, ports, commands.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def command(file: Path, *, as_json: bool) -> None:
    """Print the plan. Raises DescriptionError."""
    plan = make_plan(load(file).description)
    click.echo(json.dumps(to_json(plan), indent=2) if as_json else text(plan))


def to_json(plan: Plan) -> dict[str, object]:
    """The plan as plain values; the keys are the fields of `Plan`."""
    return dataclasses.asdict(plan)


def text(plan: Plan) -> str:
    """The plan for people."""
    return "\n".join([*_head(plan), "", *rank_rows(plan), "", *_ports(plan), "", *_commands(plan)])


def _head(plan: Plan) -> list[str]:
    hosts = len(plan.hosts)
    return [
        f"{plan.cluster}: {plan.model_name} on {hosts} hosts, {plan.gpus} GPUs, "
        f"TP={plan.tensor} x PP={plan.pipeline}, executor {plan.backend}",
        f"vLLM {plan.vllm_version}, Ray {plan.ray_version}, image {plan.image}",
        f"weights {plan.model_path}",
        f"API http://{plan.hosts[plan.head].address}:{plan.api_port}/v1",
    ]


def rank_rows(plan: Plan) -> list[str]:
    """The rank map, a row a process."""
    rows = ["rank  pp  tp  host          gpu"]
    for r in plan.ranks:
        rows.append(f"{r.rank:>4}  {r.pp_rank:>2}  {r.tp_rank:>2}  {r.host:<12}  {r.gpu:>3}")
    return rows


def _ports(plan: Plan) -> list[str]:
    rows = [f"{'port':<11}  {'what':<24}  {'where':<10}  {'binds':<8}  reached by"]
    for use in plan.ports:
        port = str(use.first) if use.first == use.last else f"{use.first}-{use.last}"
        rows.append(f"{port:<11}  {use.name:<24}  {use.where:<10}  {use.bind:<8}  {use.allowed}")
    return rows


def _commands(plan: Plan) -> list[str]:
    rows: list[str] = []
    for host in plan.hosts.values():
        for unit, container in host.containers.items():
            rows.append(f"{host.name} ({host.address}), unit {unit}.service:")
            rows += [f"    {word}" for word in container.run()]
    rows.append("environment of every container, and VLLM_HOST_IP and the network card's own:")
    rows += [f"    {name}={value}" for name, value in sorted(plan.environment.items())]
    return rows
