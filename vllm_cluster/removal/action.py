"""What a removal consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# In this order; the hosts go through each together.
Phase = Literal["stop", "restore", "firewall", "last"]
PHASES: tuple[Phase, ...] = ("stop", "restore", "firewall", "last")


@dataclass(frozen=True)
class Action:
    """One thing to do: `verb` and `what` for people, `shell` for bash on the host.

    `shell` ends with 0 when it is as it shall be, also where it was before; with 9 when it left
    something alone, and says what. `left`: what that is, where `what` names more than that.
    """

    phase: Phase
    verb: str
    what: str
    shell: str
    left: str = ""


@dataclass(frozen=True)
class Kept:
    """Something that stays, and why or how it would go."""

    what: str
    why: str


@dataclass(frozen=True)
class Removal:
    """All of a host. `remains`: what a later `down` may be asked for."""

    actions: tuple[Action, ...]
    kept: tuple[Kept, ...]
    remains: tuple[str, ...]
