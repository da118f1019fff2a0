"""What a rule is, and what it says."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_cluster.plan.refuse.request import ServeRequest


# Files that had another place, by the last release in which they had it, the oldest first.
MOVED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vllm/entrypoints/common/cli_args.py": (
        ("0.27.1", "vllm/entrypoints/openai/cli_args.py"),
        ("0.32.0", "vllm/entrypoints/launchers/cli_args.py"),
    ),
    "vllm/entrypoints/launchers/dp_supervisor.py": (
        ("0.27.1", "vllm/entrypoints/openai/dp_supervisor.py"),
    ),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a request, and what to do about it; both are whole sentences."""

    sentence: str
    fix: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A problem with the rule that found it and the released file that the rule was read in."""

    id: str
    sentence: str
    fix: str
    source: str


Check = Callable[["ServeRequest"], Problem | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One combination that vLLM refuses.

    about: what is refused, for the list in the docs.
    file: where, in the released package; where it has moved since, its newest place (MOVED).
    says: parts of what vLLM itself says, each within one line of its source; one of them is in
        the file in every release that the rule is for. scripts/flags.py looks for them when a
        release is added.
    since, until: the first and the last of the releases read that refuse it; None: no such bound.
    """

    id: str
    about: str
    file: str
    says: tuple[str, ...]
    needs: Check
    since: str | None = None
    until: str | None = None

    def applies_to(self, version: str) -> bool:
        """Whether the rule is for this release of vLLM."""
        at = release(version)
        begun = self.since is None or release(self.since) <= at
        return begun and (self.until is None or at <= release(self.until))

    def refusal(self, request: "ServeRequest") -> Refusal | None:
        """Hold the rule against a request."""
        problem = self.needs(request) if self.applies_to(request.version) else None
        if problem is None:
            return None
        source = f"{self.file_in(request.version)} ({request.version})"
        return Refusal(self.id, problem.sentence, problem.fix, source)

    def file_in(self, version: str) -> str:
        """Where the rule is in this release."""
        for until, place in MOVED.get(self.file, ()):
            if release(version) <= release(until):
                return place
        return self.file


def release(version: str) -> tuple[int, ...]:
    """A version as numbers, to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


class RuleBook:
    """Collects the rules of a module."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(
        self,
        id: str,
        about: str,
        file: str,
        *says: str,
        since: str | None = None,
        until: str | None = None,
    ) -> Callable[[Check], Check]:
        """Note the decorated function as the check of a rule."""

        def note(check: Check) -> Check:
            self.rules.append(Rule(id, about, file, says, check, since, until))
            return check

        return note
