"""What one look at a host says of the model there: the question as a script, the answer read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_RUNNING = "running"


@dataclass(frozen=True)
class Seen:
    """One host's answer.

    agent: SHA-256 of the agent there, empty where there is none. copy: the agent's words about the
    placed copy, None without one. why: why the model is not there whole, a sentence each. jobs:
    what works or worked on it. problem: why the agent could not answer.
    """

    agent: str = ""
    copy: Mapping[str, Any] | None = None
    why: tuple[str, ...] = ()
    jobs: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""

    @property
    def identity(self) -> str:
        """The identity of a copy that is whole; empty without one."""
        return str(self.copy["identity"]) if self.copy is not None and self.copy["ok"] else ""

    def running(self) -> list[str]:
        """Keys of the jobs that a process works on now."""
        return [str(job["key"]) for job in self.jobs if job[_RUNNING]]

    def trouble(self, identity: str, agent: str) -> str:
        """Why a deploy has work here; empty when it has none. `identity` as the plan knows it."""
        if agent and self.agent != agent:
            return "the agent is another version" if self.agent else "the agent is missing"
        if not self.identity:
            return self.problem or "; ".join(self.why[:3]) or "not whole"
        if not identity:
            return "which model this revision is, is not recorded yet"
        if self.identity != identity:
            return f"is {self.identity[:16]}, not {identity[:16]}"
        return ""


def look_script(agent_path: str, agent: Sequence[str], words: Sequence[str]) -> str:
    """A shell script that prints the agent's digest and what it sees. Never fails."""
    command = shlex.join([*agent, "--json", "look", *words])
    return (
        f"echo \"agent $(sha256sum {shlex.quote(agent_path)} 2>/dev/null | cut -d' ' -f1)\"; "
        f"{command} 2>&1 || true"
    )


def read_look(lines: Sequence[str]) -> Seen:
    """The script's output. What is no answer becomes `problem`."""
    agent, other = "", []
    for line in lines:
        if line.startswith("agent "):
            agent = line.removeprefix("agent ").strip()
            continue
        if line.startswith("{"):
            try:
                value = json.loads(line)
                copy, jobs = value["copy"], value["jobs"]
                return Seen(agent, copy, tuple(value["why"]), tuple(jobs))
            except (ValueError, KeyError, TypeError):
                pass
        other.append(line)
    return Seen(agent, problem=" ".join(other)[-300:] or "the agent said nothing")
