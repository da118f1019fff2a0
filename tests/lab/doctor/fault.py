"""A fault: how it is put in, what doctor must say first, how the cluster is left tidy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.harness import Cluster

Deed = Callable[[Cluster], None]


def on(host: str, command: str) -> Deed:
    """A root shell's command on a host that must succeed."""

    def deed(cluster: Cluster) -> None:
        cluster.on(host, command)

    return deed


def nothing(_: Cluster) -> None:
    """No deed."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    `symptom`: what a person would see. `inject` makes the bad state; then doctor's first failing
    line must be `finding` on `host`. `consequence`: a finding that follows later; once it is
    there, the first line must still be the same. `by_hand` does what a fix by hand says.
    `tidy` removes what the test itself brought in and no fix takes away. `real`: shows only where
    real Ray and vLLM run; the others are put into hosts with the stand-in image, and those with
    `real_consequence`, what follows where Ray and vLLM are real, into both. `described` makes the
    description say more than the suite's own. `standin` names what stands in for the real thing.
    `awaited`: doctor says something else before Ray has noticed.
    """

    name: str
    symptom: str
    finding: str
    host: str
    inject: Deed
    consequence: str = ""
    by_hand: Deed | None = None
    tidy: Deed = nothing
    real: bool = False
    real_consequence: str = ""
    awaited: bool = False
    described: Callable[[Cluster], Cluster] | None = None
    standin: str = ""
    heal_timeout_s: float = 240

    @property
    def plane(self) -> str:
        """The plane that is to be searched."""
        return self.finding.split(".")[0]
