"""A refusal: fails one host with words for a person, and changes nothing there."""

from __future__ import annotations

from pyinfra.api.command import QuoteString, StringCommand


def refuse(reason: str) -> StringCommand:
    """A command that says `reason` on standard error and fails.

    An exception would stop every host with a traceback; this stops its own host alone.
    """
    return StringCommand("echo", QuoteString(f"refused: {reason}"), ">&2; exit 1")
