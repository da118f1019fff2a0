"""A run that holds its lock: what it may be causing by itself, and fixes that would fight it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from vllm_cluster.doctor.finding import HERE, Finding, by_hand

RUN = "host.run-under-way"
# What a run stops, starts, brings and changes on its hosts.
OF_A_RUN = (
    "host.not-deployed", "docker.missing", "docker.config", "docker.down", "docker.starting",
    "docker.image-missing", "docker.image-unequal", "docker.leftover", "gpu.runtime",
    "gpu.occupied", "memory.shm", "memory.limits", "model.missing", "model.files", "model.corrupt",
    "model.other", "model.unread", "*.unit-missing", "*.unit-changed", "*.environment-changed",
    "*.not-loaded", "*.disabled", "*.masked", "*.stale", "*.unwatched", "collective.*", "ray.*",
    "vllm.*",
)  # fmt: skip
_WAIT = by_hand("Wait until the run has ended, then run doctor again")
_AFTER = by_hand("When the run has ended, if it is still so:")
_FIGHTS = re.compile(r"\bsystemctl\b.*\b(?:ray|vllm|docker)\b|\bdocker (?:rm|stop)\b")


def of_a_run(identity: str) -> bool:
    """Whether a run may be causing a finding of that id."""
    return any(fnmatchcase(identity, pattern) for pattern in OF_A_RUN)


def peaceful(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; while a run is under way with no fix to do now that stops, starts, removes or
    deploys something."""
    every = list(findings)
    if not any(finding.id == RUN for finding in every):
        return every
    return [_peaceful(finding) for finding in every]


def _peaceful(finding: Finding) -> Finding:
    if finding.id == RUN:
        return finding
    if of_a_run(finding.id):
        return replace(finding, fix=_WAIT)
    if any(step.on == HERE or _FIGHTS.search(step.command) for step in finding.fix):
        return replace(finding, fix=(*_AFTER, *finding.fix))
    return finding
