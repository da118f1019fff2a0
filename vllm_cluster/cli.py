"""`vllm-cluster`: everything around a deploy that is not the deploy itself."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import Any

import click

from vllm_cluster.control.deploys import NoInventoryError
from vllm_cluster.spec.problems import DescriptionError

# name -> (module, what `--help` says). A module is imported when its command runs: `plan` shall
# answer before a person has looked up.
COMMANDS = {
    "doctor": ("vllm_cluster.commands.doctor", "What is wrong, in which plane, and the fix."),
    "status": ("vllm_cluster.commands.status", "The cluster on one screen."),
    "support-bundle": (
        "vllm_cluster.commands.support_bundle",
        "Findings, state and logs in one archive, secrets taken out.",
    ),
    "down": ("vllm_cluster.commands.down", "Put the hosts back to what they were before."),
    "fingerprint": (
        "vllm_cluster.commands.fingerprint",
        "What the hosts consist of, and whether that changed.",
    ),
    "plan": ("vllm_cluster.commands.plan", "Show what follows from a description. Needs no host."),
    "lock": (
        "vllm_cluster.commands.lock",
        "Write down what the hosts are made of; runs refuse anything else.",
    ),
    "rebuild": ("vllm_cluster.commands.rebuild", "Make a host again from nothing."),
    "seed": ("vllm_cluster.commands.seed", "What an installer is told of a host."),
    "rollback": ("vllm_cluster.commands.rollback", "Back to an earlier generation, on all hosts."),
    "restart": ("vllm_cluster.commands.restart", "Stop in order, start again; requests finish."),
    "stop": ("vllm_cluster.commands.stop", "Stop in order; running requests finish."),
    "start": ("vllm_cluster.commands.start", "Start what lies on the hosts."),
    "weights": (
        "vllm_cluster.commands.weights",
        "List, place, verify, remove the model on the hosts.",
    ),
    "rotate": ("vllm_cluster.commands.rotate", "Make new values of generated secrets."),
}


# What a shell gives for SIGINT.
INTERRUPTED = 130


class Lazy(click.Group):
    """A group whose commands are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # the terminal shows ^C
            sys.exit(INTERRUPTED)  # click would say "Aborted!" and 1, which is "failing"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-cluster")
def group() -> None:
    """Bare GPU machines to a serving vLLM cluster, from one description.

    The deploy itself: pyinfra inventories/prod.py deploys/cluster.py
    """


def _leave(code: int) -> None:
    """End though threads wait, a resolver's for one, which nothing ends before its own time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Entry point. Exit codes: 0 good, 1 refused or failing, 2 bad input, 130 interrupted."""
    try:
        group.main(prog_name="vllm-cluster")
    except SystemExit as end:
        if end.code == INTERRUPTED and threading.active_count() > 1:
            _leave(INTERRUPTED)
        raise
    except DescriptionError as error:
        click.echo(error.text(), err=True)
        sys.exit(error.exit_code)
    except NoInventoryError as error:
        click.echo(error, err=True)
        sys.exit(2)
    except OSError as error:  # no ssh here, a directory of ours that cannot be written
        if error.filename is None:
            raise
        click.echo(f"on this machine: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
