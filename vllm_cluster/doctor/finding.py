"""What doctor says: one thing that is wrong, where, how it is known, and what heals it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from vllm_cluster.plan.signs import Plane

PLANES: tuple[Plane, ...] = (
    "host", "network", "docker", "gpu", "security", "memory", "model", "ray", "collective", "vllm",
)  # fmt: skip
Severity = Literal["failing", "blind", "warning"]
HERE = "here"
BY_HAND = "by hand"
# How the state of a unit begins that systemd starts no more.
GAVE_UP = "it gave up"
# And of one that somebody stopped: nothing but a start brings it back.
STOPPED = "it is stopped"


@dataclass(frozen=True)
class Step:
    """A line to run as root on host `on`, or `here` where doctor was run; or a deed by hand."""

    on: str
    command: str

    def text(self) -> str:
        """For people."""
        if self.on == BY_HAND:
            return self.command
        return f"{'here' if self.on == HERE else 'on ' + self.on}: {self.command}"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    `id`: plane.what. `host`: where it is to be mended. `expected` follows from the plan, `found`
    from the hosts; `evidence` are a command's own words. `about`: other hosts that it concerns.
    `severity`: failing, blind (could not look), warning.
    """

    id: str
    plane: Plane
    host: str
    expected: str
    found: str
    evidence: str = ""
    fix: tuple[Step, ...] = ()
    severity: Severity = "failing"
    about: tuple[str, ...] = ()

    @property
    def concerns(self) -> frozenset[str]:
        """Every host that it touches."""
        return frozenset({self.host, *self.about})

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"about": list(self.about), "fix": [asdict(s) for s in self.fix]}


def on(host: str, command: str) -> tuple[Step, ...]:
    """A fix that is one command on one host."""
    return (Step(host, command),)


def by_hand(words: str) -> tuple[Step, ...]:
    """A fix that no command can be."""
    return (Step(BY_HAND, words),)
