"""The lab's command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click

from vllm_cluster.lab.errors import LabError, WrongValueError
from vllm_cluster.lab.lab import DEFAULT, Lab, down
from vllm_cluster.lab.layout import MAX_HOSTS, RELEASES
from vllm_cluster.lab.packages import require_root_on_linux

_lab = click.option("--lab", "name", default=DEFAULT, show_default=True, help="The lab's name.")
_host = click.argument("host")
_command = click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
_RAW = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class _Group(click.Group):
    """Says what went wrong without a traceback. Exit code 2: a wrong value; 1: all else."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LabError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(2 if isinstance(error, WrongValueError) else 1)


def _load(name: str) -> Lab:
    """The lab, for root alone: every command works with its namespaces."""
    require_root_on_linux()
    return Lab.load(name)


def _say(text: str) -> None:
    click.echo(text, err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Bare Debian servers out of namespaces on this machine, with a network of their own."""


@main.command()
@click.option("--hosts", type=click.IntRange(1, MAX_HOSTS), default=2, show_default=True)
@_lab
@click.option("--release", type=click.Choice(RELEASES), default=RELEASES[0], show_default=True)
@click.option("--interface", default="fabric0", show_default=True, help="Its name inside hosts.")
def up(hosts: int, name: str, release: str, interface: str) -> None:
    """Make the lab, or what is missing of it, and boot every host that is off."""
    lab = Lab.up(hosts, name=name, release=release, interface=interface, say=_say)
    _say(f"ssh -F {lab.layout.ssh_config} {lab.names[0]}")


@main.command("down")
@_lab
def down_command(name: str) -> None:
    """Remove the lab: hosts, disks, mounts, namespaces, processes. The cache stays."""
    down(name, say=_say)


@main.command()
@_lab
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def status(name: str, as_json: bool) -> None:
    """Show the hosts and whether they are on."""
    lab = _load(name)
    if as_json:
        click.echo(json.dumps(lab.describe(), indent=2))
        return
    for host in lab.hosts:
        power = f"on, systemd is process {host.leader_pid}" if host.is_on else "off"
        click.echo(f"{host.name:<8} {host.address:<12} {power}")


@main.command(context_settings=_RAW)
@_lab
@_host
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(name: str, host: str, command: tuple[str, ...]) -> None:
    """Log in to HOST as root over SSH, or run COMMAND there."""
    lab = _load(name)
    argv = ["ssh", "-F", str(lab.layout.ssh_config), lab.host(host).name, *command]
    os.execvp(argv[0], argv)  # noqa: S606


@main.command("exec", context_settings=_RAW)
@_lab
@_host
@_command
def exec_command(name: str, host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND as root in HOST without network or SSH."""
    keep = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
    argv = _load(name).host(host).exec_argv(list(command), keep=keep)
    sys.exit(subprocess.run(argv, check=False).returncode)


@main.command(context_settings=_RAW)
@_lab
@_command
def outside(name: str, command: tuple[str, ...]) -> None:
    """Run COMMAND of this machine from an address in the network that is no host."""
    argv = _load(name).outside_argv(list(command))
    sys.exit(subprocess.run(argv, check=False).returncode)


@main.command("power-on")
@_lab
@_host
def power_on(name: str, host: str) -> None:
    """Boot HOST and wait until SSH answers."""
    _say(f"{host}: {_load(name).host(host).power_on()}, SSH answers")


@main.command("power-off")
@_lab
@_host
def power_off(name: str, host: str) -> None:
    """Shut HOST down cleanly."""
    _load(name).host(host).power_off()


@main.command("power-cut")
@_lab
@_host
def power_cut(name: str, host: str) -> None:
    """Take HOST's power away: all its processes end at once."""
    _load(name).host(host).power_cut()


@main.command()
@_lab
@_host
def wipe(name: str, host: str) -> None:
    """Make HOST a bare OS again, with a new SSH host key, and boot it."""
    _say(f"{host}: {_load(name).host(host).wipe()}, SSH answers")


@main.command()
@_lab
@_host
@click.argument("state", type=click.Choice(["up", "down"]))
def link(name: str, host: str, state: str) -> None:
    """Plug HOST's cable in (up) or pull it out (down)."""
    _load(name).host(host).link(up=state == "up")


@main.command()
@_lab
@_host
@click.argument("rate")
def shape(name: str, host: str, rate: str) -> None:
    """Let HOST's cable carry RATE each way (100mbit, 1gbit); `off` for all it can."""
    _load(name).host(host).shape(None if rate == "off" else rate)
