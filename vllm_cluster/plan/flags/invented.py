"""Names that guides, older releases and other programs teach, and what to write instead.

Each applies only in versions whose table lacks the name. A test holds every argument that a
sentence recommends against the tables, so that no advice is an invention itself.
"""

import functools
import re
from collections.abc import Container
from dataclasses import dataclass

from vllm_cluster.plan.flags import invented_ray, invented_vllm


@dataclass(frozen=True, slots=True)
class Invention:
    """A name that does not exist.

    sentence: what to write instead; real arguments stand in backticks.
    """

    name: str
    sentence: str

    @property
    def recommended(self) -> tuple[str, ...]:
        """The arguments of the same command that the sentence names."""
        return tuple(dict.fromkeys(re.findall(r"`(--?[A-Za-z][\w-]*)", self.sentence)))

    def instead_in(self, names: Container[str]) -> tuple[str, ...]:
        """Those that a version has."""
        return tuple(name for name in self.recommended if name in names)

    def text(self, instead: tuple[str, ...]) -> str:
        """The advice, without arguments that the version lacks."""
        return self.sentence if len(instead) == len(self.recommended) else ""


@functools.cache
def inventions(tool: str) -> dict[str, Invention]:
    """The inventions for `vllm serve` or `ray start`, by name."""
    lines = {"vllm": invented_vllm.SENTENCES, "ray": invented_ray.SENTENCES}[tool]
    found = {}
    for names, sentence in lines.items():
        for name in names.split():
            found[name] = Invention(name, sentence)
    return found
