"""What the parts of one run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vllm_cluster.control.context import Context
from vllm_cluster.placing.show import Show

Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """`say` takes sentences, `show` states. `guard` is the descriptor of the lock that keeps a
    second run of this machine waiting; a push inherits it."""

    known: Context
    show: Show
    say: Say
    guard: int
