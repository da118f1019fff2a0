"""`vllm-cluster doctor`: what is wrong, in which plane, and the fix. Changes nothing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from vllm_cluster.control.context import context
from vllm_cluster.control.remote import ssh_argv
from vllm_cluster.control.typed import shown
from vllm_cluster.doctor import collective as collectives
from vllm_cluster.doctor import collective_report, measure, need, report
from vllm_cluster.doctor import exposure as exposures
from vllm_cluster.doctor import logs as host_logs
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import rdma
from vllm_cluster.doctor.examine import examine
from vllm_cluster.doctor.finding import PLANES
from vllm_cluster.doctor.network_report import Report, state_file
from vllm_cluster.facts.doctor import HostFacts
from vllm_cluster.spec import load

_HELP = """What is wrong with a cluster, in which plane, and the fix.

\b
    vllm-cluster doctor FILE              every check, in seconds
    vllm-cluster doctor network FILE      measure the links: rates, times, path
    vllm-cluster doctor collective FILE   all-reduce and send between the hosts
    vllm-cluster doctor logs FILE         the first cause in Ray's and vLLM's logs
    vllm-cluster doctor exposure FILE     what answers from this machine

Reads everything and changes nothing. The first failing line is the cause; what follows from it is
named beneath. Exit codes: 0 sound, 1 failing, 2 could not look.
"""
_FILE = click.argument("file", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


class _CheckByDefault(click.Group):
    """`doctor FILE` is `doctor check FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_CheckByDefault, help=_HELP)
def command() -> None:
    """The group; see _HELP."""


@command.command("check", help="Every check, in seconds.")
@_FILE
@_JSON
@click.option("--plane", multiple=True, type=click.Choice(PLANES), help="Show this plane alone.")
@click.option("--host", multiple=True, help="Show this host alone; all are looked at.")
@click.option("--all", "everything", is_flag=True, help="Show in full what follows from a cause.")
@click.option("--deep", is_flag=True, help="Let DCGM diagnose the GPUs too: half a minute.")
@click.option("--watch", type=click.FloatRange(min=1), metavar="S",
              help="Again every S seconds; with --json one object a line.")  # fmt: skip
def check(
    file: Path, *, as_json: bool, plane: tuple[str, ...], host: tuple[str, ...],
    everything: bool, deep: bool, watch: float | None,
) -> None:  # fmt: skip
    """Look, print, exit. With --watch print whenever something changed, until interrupted."""
    _refuse_unknown(file, host)
    last: object = None
    while True:
        found = examine(file, deep=deep)
        chosen = report.select(found, plane, host)
        printed = report.dumps(found, chosen, lines=watch is None) if as_json else report.text(
            found, chosen, everything=everything)  # fmt: skip
        if watch is None:
            click.echo(printed)
            sys.exit(found.exit_code)
        # Not what was found: seconds and rates in it are others at every look.
        state = sorted((f.id, f.host, f.severity) for f, _ in chosen)
        if state != last:
            click.echo(printed if as_json else f"{time.strftime('%H:%M:%S')}\n{printed}")
        last = state
        time.sleep(watch)


def _refuse_unknown(file: Path, hosts: tuple[str, ...]) -> None:
    """Before any host is asked: a slip of the pen is answered at once."""
    there = load(file.resolve()).description.hosts if hosts else {}
    unknown = [name for name in hosts if name not in there]
    if unknown:
        raise click.BadParameter(
            f"no such host: {', '.join(unknown)}; there are {', '.join(there)}", param_hint="--host"
        )


@command.command("network", help="Measure the links between the hosts; ten seconds a pair.")
@_FILE
@_JSON
def network(file: Path, *, as_json: bool) -> None:
    """Measure, compare with the need and with last time, keep it."""

    known = context(file.resolve(), make_secrets=False)
    kept = state_file(known.plan.cluster)
    before = measure.last_time(kept)
    # One pair after another: two at once would measure each other.
    measured = [measure.measure(known.cluster, a, b) for a, b in measure.pairs(known.plan)]
    args = known.cluster.description.serve.args
    wanted = need.needs(known.plan, need.config_of(known.source), args) if known.source else []
    ports = measure.rdma_ports(known.cluster, known.plan)
    case = Case(
        known.plan, {name: HostFacts(name, rdma=found) for name, found in ports.items()},
        description=shown(known.cluster.file),
    )  # fmt: skip
    wrong = (*rdma.ports(case), *rdma.errors(case))
    found = Report(measured, wanted, before, ports, wrong)
    if not all(pair.error for pair in measured):
        measure.save(kept, measured, before)
    _show(found.to_json() if as_json else found.text())
    sys.exit(found.exit_code)


@command.command("collective", help="all-reduce and send between the hosts, as vLLM does it.")
@_FILE
@_JSON
def collective(file: Path, *, as_json: bool) -> None:
    """Run it in the image, name the transport; fails where RDMA is described and not taken."""

    known = context(file.resolve(), make_secrets=False)
    found = collectives.test(known.cluster, known.plan)
    rdma = known.cluster.description.rdma is not None
    problem = collective_report.problem(found, rdma=rdma)
    _show(collective_report.to_json(found, problem) if as_json
          else collective_report.text(found, problem))  # fmt: skip
    sys.exit(collective_report.exit_code(found, problem))


@command.command("logs", help="The first cause in Ray's and vLLM's logs since their last start.")
@_FILE
@_JSON
def logs(file: Path, *, as_json: bool) -> None:
    """Read the logs of all hosts."""

    found = examine(file, log_lines=5000, keyless=False)
    _show(host_logs.to_json(found) if as_json else host_logs.text(found))
    sys.exit(0 if found.look.facts else 2)


@command.command("exposure", help="Which ports of the cluster answer from this machine.")
@_FILE
@_JSON
def exposure(file: Path, *, as_json: bool) -> None:
    """Dial them."""

    known = context(file.resolve(), make_secrets=False)
    if not exposures.direct(ssh_argv(known.cluster, known.plan.hosts[known.plan.head])):
        click.echo("SSH takes a jump or a proxy to the hosts: at their addresses another machine "
                   "may answer this one.", err=True)  # fmt: skip
    answers = exposures.dial_all(known.plan, known.cluster.description.ssh.port)
    found = list(exposures.findings(known.plan, answers))
    if as_json:
        _show({"looked": exposures.looked(answers), "findings": [f.to_json() for f in found],
               "open": sorted(f"{h}:{p}" for (h, p), a in answers.items() if a.open)})  # fmt: skip
    elif not exposures.looked(answers):
        _show("Nothing answers: this machine has no way of its own to the hosts.")
    else:
        for (host, port), answer in sorted(answers.items()):
            if answer.open:
                click.echo(f"open  {host}:{port}  {answer.http}")
        for finding in found:
            mark = "warn" if finding.severity == "warning" else "FAIL"
            click.echo(f"{mark}  {finding.host}: {finding.found}\n"
                       f"      fix {finding.fix[0].text()}")  # fmt: skip
    failing = any(finding.severity != "warning" for finding in found)
    sys.exit(1 if failing else 0 if exposures.looked(answers) else 2)


def _show(what: str | dict[str, Any]) -> None:
    click.echo(what if isinstance(what, str) else json.dumps(what, indent=2))
