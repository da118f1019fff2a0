"""The lock of a run around what a command changes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping

import click

from vllm_cluster.control import run_lock


@contextlib.contextmanager
def locked(what: str, roots: Mapping[str, Callable[[str], list[str]]]) -> Iterator[run_lock.Lock]:
    """`run_lock.holding`; says why and ends the program where another run is at work."""
    try:
        with run_lock.holding(what, roots) as lock:
            yield lock
    except run_lock.LockedError as error:
        refused = "" if isinstance(error, run_lock.LostError) else "refused: "
        click.echo(f"{refused}{error}", err=True)
        sys.exit(1)
