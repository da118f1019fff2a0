"""A refusal: fails one host with words for a person, and changes nothing there."""

from __future__ import annotations

import atexit

import click
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.operations import its_log

# How and why this process has ended, and on which hosts; "" where the reason names them.
_ends: dict[tuple[str, str], set[str]] = {}
# How it is now, by host.
_now: dict[str, str] = {}
_REFUSED = "refused: "


def refuse(reason: str) -> StringCommand:
    """A command that says `reason` on standard error and fails.

    An exception would stop every host with a traceback; this stops its own host alone.
    """
    if host.state.is_executing:
        note_end("refused", host.name, reason)
    return StringCommand("echo", QuoteString(f"{_REFUSED}{reason}"), ">&2; exit 1")


def note_end(how: str, name: str, reason: str) -> None:
    """Have this said once more at the end. `how`: "refused" or "failed"; `name`: "" where the
    reason says where."""
    _ends.setdefault((how, reason), set()).add(name)


def note_now(words: str) -> None:
    """Have said at the end how this host is then."""
    if host.state.is_executing:
        _now[host.name] = words


def tell_last(state: State) -> None:
    """Let this process end with why it ended: pyinfra says each once a host, and more after it."""
    atexit.unregister(_tell)
    atexit.register(_tell, state)


def _tell(state: State) -> None:
    note_scripts(state)
    for line in told():
        click.echo(line, err=True)


def note_scripts(state: State) -> None:
    """Note why hosts' own programs refused, and units did not start: pyinfra alone saw words."""
    for each, operations in state.ops.items():
        for done in operations.values():
            meta = done.operation_meta
            words = meta.stderr_lines if meta.is_complete() and meta.did_error() else []
            for line in words[-1:]:
                if line.startswith(_REFUSED):
                    note_end("refused", each.name, line.removeprefix(_REFUSED))
            if reason := its_log.why(words):
                note_end("failed", each.name, reason)


def told() -> list[str]:
    """How hosts are now, and what was noted, each once, with the hosts that it was on."""
    now = [f"{name}: {words}" for name, words in sorted(_now.items())]
    ends = [
        f"{how}{' on ' * any(on)}{', '.join(sorted(on))}: {why}" for (how, why), on in _ends.items()
    ]
    return now + ends
