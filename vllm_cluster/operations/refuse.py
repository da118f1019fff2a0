"""A refusal: fails one host with words for a person, and changes nothing there."""

from __future__ import annotations

import atexit

import click
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.context import host

# Why this process has refused, and on which hosts.
_refused: dict[str, set[str]] = {}


def refuse(reason: str) -> StringCommand:
    """A command that says `reason` on standard error and fails.

    An exception would stop every host with a traceback; this stops its own host alone.
    """
    if host.state.is_executing:
        _refused.setdefault(reason, set()).add(host.name)
    return StringCommand("echo", QuoteString(f"refused: {reason}"), ">&2; exit 1")


def tell_last() -> None:
    """Let this process end with its refusals: pyinfra says each once a host, and more after it."""
    atexit.unregister(_tell)
    atexit.register(_tell)


def _tell() -> None:
    for line in told():
        click.echo(line, err=True)


def told() -> list[str]:
    """The refusals of this process, each once, with the hosts that it was on."""
    return [f"refused on {', '.join(sorted(on))}: {reason}" for reason, on in _refused.items()]
