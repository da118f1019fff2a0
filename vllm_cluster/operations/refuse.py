"""A refusal: fails one host with words for a person, and changes nothing there."""

from __future__ import annotations

import atexit

import click
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.context import host

# How and why this process has ended, and on which hosts.
_ends: dict[tuple[str, str], set[str]] = {}


def refuse(reason: str) -> StringCommand:
    """A command that says `reason` on standard error and fails.

    An exception would stop every host with a traceback; this stops its own host alone.
    """
    if host.state.is_executing:
        note_end("refused", host.name, reason)
    return StringCommand("echo", QuoteString(f"refused: {reason}"), ">&2; exit 1")


def note_end(how: str, name: str, reason: str) -> None:
    """Have this said once more at the end. `how`: "refused" or "failed"."""
    _ends.setdefault((how, reason), set()).add(name)


def tell_last() -> None:
    """Let this process end with why it ended: pyinfra says each once a host, and more after it."""
    atexit.unregister(_tell)
    atexit.register(_tell)


def _tell() -> None:
    for line in told():
        click.echo(line, err=True)


def told() -> list[str]:
    """What was noted, each once, with the hosts that it was on."""
    return [f"{how} on {', '.join(sorted(on))}: {why}" for (how, why), on in _ends.items()]
