"""A run that holds its lock: what it may be causing by itself, and fixes that would fight it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from fnmatch import fnmatchcase

from vllm_cluster.doctor.finding import BY_HAND, HERE, Finding, Step, by_hand
from vllm_cluster.plan.ports import SPREADING

RUN = "host.run-under-way"
# What a run stops, starts, brings and changes on its hosts.
OF_A_RUN = (
    "host.not-deployed", "host.other-generation", "docker.missing", "docker.config", "docker.down",
    "docker.starting", "docker.image-missing", "docker.image-unequal", "docker.leftover",
    "gpu.runtime", "gpu.occupied", "memory.shm", "memory.limits", "model.missing", "model.files",
    "model.corrupt", "model.other", "model.unread", "*.unit-missing", "*.unit-changed",
    "*.environment-changed", "*.not-loaded", "*.disabled", "*.masked", "*.stale", "*.unwatched",
    "security.secret-missing", "collective.*", "ray.*", "vllm.*",
)  # fmt: skip
# What one may be causing that only brings, reads or removes weights: it stops no unit.
OF_WEIGHTS = (
    "model.missing", "model.files", "model.corrupt", "model.other", "model.unread", "vllm.waiting",
)  # fmt: skip
_TAKEN = "host.port-taken"
_WEIGHTS = " runs vllm-cluster weights "
_WAIT = by_hand("Wait until the run has ended, then run doctor again")
_AFTER = by_hand("When the run has ended, if it is still so:")
_OURS = "ray-head|ray-worker|vllm"
_FIGHTS = re.compile(
    rf"\bsystemctl\b[^;&|]*\s(?:{_OURS}|docker)(?:\.service|\.socket)?(?![\w.-])"
    rf"|\bdocker (?:rm|stop)\b[^;&|]*\s(?:{_OURS})(?![\w.-])"
)
# Of any run it would take the host away, of one of weights too.
_REBOOTS = re.compile(r"\breboot\b")


def of_run(run: Finding, finding: Finding) -> bool:
    """Whether that run may be causing that finding."""
    if finding.id == _TAKEN:  # by what spreads images and weights from host to host
        return finding.expected.endswith(SPREADING)
    patterns = OF_WEIGHTS if _of_weights(run) else OF_A_RUN
    return any(fnmatchcase(finding.id, pattern) for pattern in patterns)


def peaceful(finding: Finding, runs: Collection[Finding], *, explained: bool) -> Finding:
    """The finding, with no fix to do now that would fight one of the `runs` that are under way.

    `explained`: one of them may be causing it.
    """
    if explained:
        return replace(finding, fix=_WAIT)
    if any(_fights(step, finding, run) for step in finding.fix for run in runs):
        return replace(finding, fix=(*_AFTER, *finding.fix))
    return finding


def _fights(step: Step, finding: Finding, run: Finding) -> bool:
    if step.on == HERE:  # it would want the lock itself
        return True
    host = finding.host if step.on == BY_HAND else step.on
    if host not in run.concerns:
        return False
    stops = not _of_weights(run) and _FIGHTS.search(step.command)
    return bool(stops or _REBOOTS.search(step.command))


def _of_weights(run: Finding) -> bool:
    return _WEIGHTS in run.found
