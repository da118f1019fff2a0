"""`vllm-cluster plan`: what fits and why, ranks, ports, and what every process gets."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import click

from vllm_cluster.commands.plan_text import nfs_load_s, plan_text
from vllm_cluster.control import lock
from vllm_cluster.control.judge import Judged, check_arguments, judge
from vllm_cluster.control.model_directory import directories, directory
from vllm_cluster.plan import Plan, make_plan
from vllm_cluster.plan.memory.facts import ModelFacts, UnsupportedModelError
from vllm_cluster.plan.picture.rankmap import HostLabel, RankMap, rank_map
from vllm_cluster.plan.picture.text import render_text, style_for
from vllm_cluster.plan.settle import hosts
from vllm_cluster.spec import Cluster, DescriptionError, load


@click.command(help="Show what follows from the description FILE. Exit 0 fits, 1 refused, 2 bad.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object (docs/plan-json.md).")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the rank map there as SVG.")
@click.option(
    "--model", type=click.Path(path_type=Path), help="A directory with config.json, to weigh."
)
@click.option("--hub", help="A model on the hub, ORG/NAME[@REVISION]: read, not downloaded.")
@click.option("--what-if", is_flag=True, help="A table of what would fit.")
@click.option("--max-model-len", default="", help="What if: lengths, such as 4096,8192,32768.")
@click.option("--requests", default="", help="What if: full requests at once, such as 1,8,64.")
@click.option("--kv-dtype", default="", help="What if: such as auto,fp8.")
@click.option("--hosts", "host_counts", default="", help="What if: numbers of hosts, such as 1,2.")
@click.option("--gpus", default="", help="What if: GPUs of a host, such as 4,8.")
def command(  # noqa: PLR0917  an option each
    file: Path,
    as_json: bool,
    svg: Path | None,
    model: Path | None,
    hub: str | None,
    what_if: bool,
    max_model_len: str,
    requests: str,
    kv_dtype: str,
    host_counts: str,
    gpus: str,
) -> None:
    """Print the plan. Raises DescriptionError; exit codes are its own."""
    axes = {
        "--max-model-len": max_model_len,
        "--requests": requests,
        "--kv-dtype": kv_dtype,
        "--hosts": host_counts,
        "--gpus": gpus,
    }
    _refuse_senseless(model, hub, what_if, svg, [name for name, value in axes.items() if value])
    try:
        cluster = load(file)
        facts = _facts(cluster, model, hub)
        if what_if:
            from vllm_cluster.commands.plan_whatif import (  # noqa: PLC0415  for it alone
                axes_of,
                what_if_json,
                what_if_text,
            )

            check_arguments(cluster)
            tried = axes_of(max_model_len, requests, kv_dtype, host_counts, gpus)
            show = what_if_json if as_json else what_if_text
            click.echo(show(cluster, _needed(cluster, facts), tried))
            return
        judged = judge(cluster, facts)
    except DescriptionError as error:
        if not as_json:
            raise
        click.echo(json.dumps(_problems(error), indent=2))
        sys.exit(error.exit_code)
    picture = _picture(judged)
    if svg is not None:
        _write_svg(svg, picture)
    click.echo(json.dumps(_json(judged), indent=2) if as_json else _text(judged, picture))


def _refuse_senseless(
    model: Path | None, hub: str | None, what_if: bool, svg: Path | None, axes: list[str]
) -> None:
    """Refuse options of which one would be ignored without a word."""
    if model is not None and hub is not None:
        raise click.UsageError("--model or --hub, not both: one model is weighed")
    if what_if and svg is not None:
        raise click.UsageError("--svg draws one plan, --what-if tabulates many: one of them")
    if axes and not what_if:
        raise click.UsageError(f"{', '.join(axes)} only with --what-if")


def _text(judged: Judged, picture: RankMap | None) -> str:
    columns = shutil.get_terminal_size((100, 24)).columns
    drawn = render_text(picture, style_for(sys.stdout, columns)) if picture else ""
    return plan_text(judged, _plan(judged.cluster), drawn, _model_bytes(judged))


def _plan(cluster: Cluster) -> Plan:
    """The plan as far as it follows from files beside the description: nothing is hashed."""
    revision = cluster.description.model.revision
    return make_plan(
        cluster.description, model_id=lock.read(cluster, revision) if revision else None
    )


def _model_bytes(judged: Judged) -> int:
    """The size of the model's files, in bytes; 0 where nothing here says it."""
    fit = judged.decision.fit if judged.decision else None
    if fit is not None:
        return fit.model.stored_bytes
    try:
        folder = directory(judged.cluster)
    except ValueError:
        return 0
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) if folder else 0


def _json(judged: Judged) -> dict[str, object]:
    """The fields of `Plan`, the decision with its numbers, and why there are none."""
    plan = _plan(judged.cluster)
    return {
        "verdict": "fits",
        **dataclasses.asdict(plan),
        "model_path": plan.model_path,
        "weights_directory": plan.weights_directory,
        "nfs_load_s": nfs_load_s(plan, _model_bytes(judged)),
        "decision": judged.decision.to_json() if judged.decision else None,
        "unweighed": judged.unweighed,
    }


def _problems(error: DescriptionError) -> dict[str, object]:
    return {
        "verdict": "refused" if error.exit_code == 1 else "invalid",
        "file": str(error.file),
        "problems": [dataclasses.asdict(problem) for problem in error.problems],
    }


def _facts(cluster: Cluster, model: Path | None, hub: str | None) -> ModelFacts | None:
    """The facts of the model that an option names, None for the description's own."""
    if model is None and hub is None:
        return None
    from vllm_cluster.model.safetensors import ModelReadError  # noqa: PLC0415  slow, rarely needed

    try:
        if model is not None:
            from vllm_cluster.model.local import read_model  # noqa: PLC0415  as above

            return read_model(model)
        from vllm_cluster.model.hub import read_hub_model  # noqa: PLC0415  as above

        repo, _, revision = (hub or "").partition("@")
        return read_hub_model(repo, revision=revision or None)
    except (ModelReadError, UnsupportedModelError) as error:
        found, accepted = str(error), "a model that can be read and weighed"
        problem = cluster.problem("model", "source", found=found, accepted=accepted)
        raise DescriptionError(cluster.file, [problem]) from None


def _needed(cluster: Cluster, facts: ModelFacts | None) -> ModelFacts:
    named = next(directories(cluster), None)
    try:
        found = facts or _facts(cluster, directory(cluster) or named, None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if found is None:
        raise click.UsageError("the model is not on this machine: name --model DIR or --hub")
    return found


def _picture(judged: Judged) -> RankMap | None:
    decision = judged.decision
    if decision is None or decision.fit is None or not decision.places:
        return None
    description = judged.cluster.description
    labels = {
        name: HostLabel(
            address=str(host.address),
            nic=host.interface or "",
            role="head" if name == description.head else "worker",
        )
        for name, host in description.hosts.items()
    }
    return rank_map(decision, hosts(description), labels)


def _write_svg(path: Path, picture: RankMap | None) -> None:
    if picture is None:
        raise click.UsageError("there is no picture without the model's numbers: name --model DIR")
    from vllm_cluster.plan.picture.svg import render_svg  # noqa: PLC0415  for it alone

    try:
        path.write_text(render_svg(picture), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--svg {path}: {error.strerror}") from None
