"""`make demo`: two hosts out of this machine, brought from a bare OS to an answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from vllm_cluster.commands.plan_text import rank_rows
from vllm_cluster.control.context import Context, context
from vllm_cluster.lab import Lab, LabError, down

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
DESCRIPTION = ROOT / "inventories" / "lab.yaml"
REFERENCE = ROOT / ".cache" / "model" / "reference.json"
TIMES = ROOT / ".lab" / "demo-times.json"
LAB = "lab"


class DemoError(Exception):
    """A part failed; the message says which and why."""


@click.group()
def main() -> None:
    """Try the whole of it on this machine."""


@main.command("down")
def down_command() -> None:
    """Remove the demo's hosts. What was built stays in .cache for the next time."""
    down(LAB, say=click.echo)


@main.command("up")
def up_command() -> None:
    """Make two hosts, deploy to them, ask them, and show what came of it."""
    try:
        _up()
    except (DemoError, LabError) as error:
        click.echo(f"\nthe demo stopped: {error}", err=True)
        sys.exit(1)


def _up() -> None:
    times: dict[str, float] = {}
    with _timed(times, "image: vLLM and Ray on CPUs"):
        _make("image")
    with _timed(times, "model: four layers, fixed weights"):
        _make("model")
    with _timed(times, "reference: one vLLM process"):
        _make("reference")
    with _timed(times, "lab: two bare hosts"):
        lab = Lab.up(2, name=LAB, say=click.echo)
    with _timed(times, "deploy: from a bare OS to a completion"):
        _pyinfra("-y", "--fail-percent", "0")
    with _timed(times, "second run: nothing to change"):
        totals = _second_run()
    known = context(DESCRIPTION)
    reference = json.loads(REFERENCE.read_text())
    with _timed(times, "the answer"):
        answer = _ask(lab, known, reference)
    TIMES.write_text(json.dumps(times, indent=2) + "\n")
    _show(lab=lab, known=known, reference=reference, answer=answer, times=times, totals=totals)


@contextmanager
def _timed(times: dict[str, float], what: str) -> Iterator[None]:
    click.echo(click.style(f"\n== {what}", bold=True))
    began = time.monotonic()
    yield
    times[what] = round(time.monotonic() - began, 1)


def _make(target: str) -> None:
    if subprocess.run(["make", "--no-print-directory", target], cwd=ROOT, check=False).returncode:
        raise DemoError(f"`make {target}` failed; its words are above")


def _pyinfra(*options: str) -> None:
    command = ["pyinfra", *options, "inventories/lab.py", "deploys/cluster.py"]
    click.echo(" ".join(command))
    if subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, check=False).returncode:
        raise DemoError("the deploy failed; the host, the step and its words are above")


def _second_run() -> dict[str, int]:
    command = ["pyinfra", "--json", "--yes", "inventories/lab.py", "deploys/cluster.py"]
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise DemoError(f"the second run failed:\n{done.stdout}{done.stderr}")
    totals: dict[str, int] = json.loads(done.stdout)["results"]["totals"]
    click.echo(f"{totals['success']} changes, {totals['no_change']} operations had nothing to do")
    if totals["success"]:
        raise DemoError("the second run changed something")
    return totals


def _ask(lab: Lab, known: Context, reference: dict[str, Any]) -> dict[str, Any]:
    """A greedy completion, asked from an address that is not in the cluster."""
    plan = known.plan
    body = {
        "model": plan.model_name, "prompt": reference["prompt"], "temperature": 0,
        "max_tokens": len(reference["token_ids"]), "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    done = lab.outside(
        "curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60",
        "--header", f"Authorization: Bearer {known.secrets['api_key']}",
        "--header", "Content-Type: application/json", "--data", json.dumps(body),
        f"http://{plan.hosts[plan.head].address}:{plan.api_port}/v1/completions",
    )  # fmt: skip
    if done.returncode:
        raise DemoError(f"no answer: {done.stdout}{done.stderr}")
    choice: dict[str, Any] = json.loads(done.stdout)["choices"][0]
    if choice["token_ids"] != reference["token_ids"]:
        raise DemoError(
            f"the cluster's tokens {choice['token_ids']} are not those of one process, "
            f"{reference['token_ids']}"
        )
    return choice


def _show(
    *,
    lab: Lab,
    known: Context,
    reference: dict[str, Any],
    answer: dict[str, Any],
    times: dict[str, float],
    totals: dict[str, int],
) -> None:
    say: Callable[[str], None] = click.echo
    say(click.style("\nThe plan's ranks, and vLLM's own log of them", bold=True))
    for row in rank_rows(known.plan):
        say(f"  {row}")
    log = lab.host(known.plan.head).ssh("journalctl --unit=vllm --output=cat --no-pager").stdout
    for line in re.findall(r"rank \d+ in world size .*? TP rank \d+", log):
        say(f"  {line}")
    say(click.style("\nPrompt, and answer (greedy; the same as one process gives)", bold=True))
    say(f"  {reference['prompt']!r}\n  {answer['text']!r}\n  tokens {answer['token_ids']}")
    say(click.style("\nTime", bold=True))
    for what, seconds in times.items():
        say(f"  {seconds:7.1f} s  {what}")
    say(f"  {sum(times.values()):7.1f} s  in all")
    say(f"  the second run: {totals['success']} changes")
    say(click.style("\nLook around", bold=True))
    say("  make lab-shell HOST=node-a       root on the head: docker ps, systemctl status vllm")
    say("  journalctl -u vllm               there: vLLM's log")
    say("  pyinfra inventories/lab.py deploys/cluster.py   again: changes nothing")
    say("  vllm-cluster plan inventories/lab.yaml          what follows from the description")
    say("  make demo-down                   remove it all")


if __name__ == "__main__":
    main()
