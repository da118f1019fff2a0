"""Which finding explains which: a cause comes first and hides what follows from it.

`CAUSES[b]` names the findings that can be the reason for `b`. A finding is explained when one of
its possible causes was found and both concern a common host, or when the effect is one of the
whole cluster (`WIDE`). Depth is the length of the longest chain of causes beneath a finding. A run
that is under way comes before all others, and what it may be causing causes nothing further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from vllm_cluster.doctor.finding import BY_HAND, GAVE_UP, HERE, PLANES, STOPPED, Finding
from vllm_cluster.doctor.under_way import RUN, of_run, peaceful

_HOST = ("host.unreachable", "host.key-changed", "host.no-root", "host.incomplete")
_DISK = ("host.disk-full", "host.read-only", "host.mount-missing", "host.mount-hung")
_NET = (
    "network.link-down", "network.address-missing", "network.second-address", "network.mtu",
    "network.peer-unreachable", "network.port-blocked", "network.name",
)  # fmt: skip
_DOCKER = (
    "docker.missing", "docker.masked", "docker.config", "docker.down", "docker.image-missing",
    "docker.starting",
)  # fmt: skip
_GPU = (
    "gpu.driver-missing", "gpu.driver-mismatch", "gpu.driver-failing", "gpu.count", "gpu.runtime",
    "gpu.uvm", "gpu.mig", "gpu.occupied", "gpu.fabric-manager", "gpu.xid", "gpu.memory-errors",
    "gpu.rows-failed", "gpu.rows-pending", "gpu.driver-unequal", "gpu.compute-mode",
    "gpu.lost",
)  # fmt: skip
_FILES = ("*.unit-missing", "*.unit-changed", "*.environment-changed", "*.masked", "*.not-loaded")
_RAY = (
    "ray.token", "ray.version", "ray.python", "docker.image-unequal", "docker.leftover",
    "host.port-taken", "memory.shm", "memory.limits", "memory.pressure", "memory.out",
    "host.clock", "security.secret-missing",
)  # fmt: skip
_MODEL = ("model.missing", "model.files", "model.corrupt", "model.other", "model.rotten")
_COLLECTIVE = (
    "collective.card", "collective.address", "collective.rdma-device", "collective.gid",
    "network.rdma-missing", "network.rdma-port",
)  # fmt: skip

CAUSES: Mapping[str, tuple[str, ...]] = {
    "host.not-deployed": (*_HOST, *_DISK),
    "host.mount-missing": (),
    "host.mount-hung": ("network.link-down", "network.peer-unreachable"),
    "network.peer-unreachable": (*_HOST, "network.link-down", "network.address-missing"),
    "network.port-blocked": (*_HOST, "network.link-down", "network.address-missing",
                             "network.peer-unreachable", "security.firewall-rule"),
    "network.name": ("host.not-deployed",),
    "network.mtu": ("network.link-down", "network.address-missing", "network.peer-unreachable"),
    "docker.missing": ("host.not-deployed", *_DISK),
    "docker.masked": ("host.not-deployed",),
    "docker.config": ("host.not-deployed",),
    "docker.down": ("docker.missing", "docker.masked", "docker.config", *_DISK),
    "docker.starting": _DISK,
    "docker.image-missing": ("docker.missing", "docker.masked", "docker.config", "docker.down",
                             "host.not-deployed", *_DISK),
    "docker.image-unequal": ("docker.image-missing",),
    "gpu.driver-missing": (),
    "gpu.driver-mismatch": (),
    "gpu.*": ("gpu.driver-missing", "gpu.driver-mismatch"),
    "gpu.runtime": ("docker.missing", "docker.down", "docker.starting", "gpu.driver-missing"),
    "security.firewall*": ("host.not-deployed", "security.masked", "security.unit-missing"),
    "security.firewall-gcs": ("security.firewall", "host.not-deployed", "security.masked",
                              "security.unit-missing"),
    "security.masked": ("host.not-deployed",),
    "security.exposed": ("security.firewall", "security.masked", "security.unit-missing",
                         "security.published-port", "host.not-deployed"),
    "security.api-open": ("host.port-taken",),
    "*.unit-missing": ("host.not-deployed", *_DISK),
    "*.environment-changed": ("host.not-deployed",),
    "*.unit-changed": ("host.not-deployed",),
    "*.not-loaded": ("*.unit-changed",),
    "security.secret-missing": ("host.not-deployed", *_DISK),
    "ray.token": ("security.secret-missing",),
    "memory.shm": ("ray.unit-changed", "vllm.unit-changed"),
    "memory.limits": ("ray.unit-changed", "vllm.unit-changed"),
    "ray.stale": ("*.unit-changed", "*.environment-changed", "ray.token"),
    "vllm.stale": ("*.unit-changed", "*.environment-changed", "security.secret-missing"),
    "collective.card": ("collective.environment-changed",),
    "collective.address": ("collective.environment-changed", "network.second-address"),
    "collective.rdma-device": ("network.rdma-missing", "ray.unit-changed", "vllm.unit-changed"),
    "collective.gid": ("network.rdma-missing", "network.rdma-port"),
    "ray.version": ("docker.image-unequal",),
    "ray.python": ("docker.image-unequal",),
    "model.missing": (*_DISK, "host.not-deployed"),
    "model.unread": _DISK,
    "model.files": (*_DISK, "model.missing"),
    "model.corrupt": ("model.files",),
    "model.rotten": ("model.missing", "model.files", "model.corrupt", "model.other"),
    "ray.head-down": (*_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, "network.address-missing"),
    "ray.worker-down": (*_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, *_NET, "ray.head-down",
                        "ray.disabled", "ray.starting"),
    "ray.starting": (*_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, *_NET, "ray.head-down",
                     "ray.disabled"),
    "ray.raylet": (*_DISK, *_DOCKER, *_RAY, "ray.head-down", "ray.worker-down", "ray.stale",
                   "ray.starting"),
    "ray.dashboard": (*_DISK, *_DOCKER, *_RAY, "ray.head-down"),
    "ray.node-missing": ("ray.disabled", *_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, *_NET,
                         "ray.head-down", "ray.worker-down", "ray.raylet", "ray.dashboard",
                         "ray.stale", "ray.starting"),
    "ray.gpus": (*_GPU, "ray.unit-changed", "ray.stale"),
    "vllm.down": (*_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, *_NET, *_MODEL, *_COLLECTIVE,
                  "ray.head-down", "ray.worker-down", "ray.raylet", "ray.node-missing",
                  "ray.gpus", "ray.stale", "ray.starting"),
    "vllm.waiting": (*_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, *_NET, "ray.head-down",
                     "ray.worker-down", "ray.raylet", "ray.node-missing", "ray.gpus",
                     "ray.stale", "ray.dashboard", "ray.starting"),
    "vllm.starting": (*_HOST, *_DISK, *_DOCKER, *_GPU, *_FILES, *_RAY, *_NET, *_MODEL,
                      *_COLLECTIVE, "ray.head-down", "ray.worker-down", "ray.raylet",
                      "ray.node-missing", "ray.gpus", "ray.stale", "ray.starting"),
    "vllm.health": ("vllm.down", "vllm.waiting", "vllm.starting", *_HOST, *_DISK, *_DOCKER, *_NET,
                    "ray.head-down", "ray.worker-down", "ray.node-missing", "host.port-taken",
                    "ray.starting"),
    "vllm.key": ("vllm.stale", "security.secret-missing", "security.secret-other"),
    "vllm.hung": ("vllm.health", "vllm.down", *_HOST, *_DISK, *_NET, *_COLLECTIVE, "ray.head-down",
                  "ray.worker-down", "ray.raylet", "ray.node-missing", "memory.out", *_MODEL,
                  "ray.starting"),
}  # fmt: skip
# Effects that show on the head whatever host the cause is on.
WIDE = ("vllm.*", "ray.node-missing", "ray.head-down", "ray.worker-down", "ray.dashboard",
        "ray.starting", "network.peer-unreachable", "network.port-blocked")  # fmt: skip


def causes_of(identity: str) -> tuple[str, ...]:
    """Patterns of what may explain a finding of that id: its own entry, else its plane's."""
    if identity in CAUSES:
        return CAUSES[identity]
    return next((CAUSES[p] for p in CAUSES if "*" in p and fnmatchcase(identity, p)), ())


def explains(cause: Finding, effect: Finding, wide: tuple[str, ...] = WIDE) -> bool:
    """Whether `cause` is the reason for `effect`, directly; of `wide` effects on any host."""
    if cause is effect or cause.severity == "warning":
        return False
    if cause.id == RUN:
        possible = of_run(cause, effect)
    else:
        possible = any(fnmatchcase(cause.id, pattern) for pattern in causes_of(effect.id))
    if not possible or (effect.found.startswith(STOPPED) and not _stops(cause, effect)):
        return False
    everywhere = any(fnmatchcase(effect.id, pattern) for pattern in wide)
    return bool(cause.concerns & effect.concerns) or (everywhere and _far(cause, effect))


def _stops(cause: Finding, effect: Finding) -> bool:
    """Whether what is stopped comes back with the fix of `cause`, or could not be started yet."""
    if cause.id == RUN or cause.found.startswith(STOPPED):
        return True
    if cause.id == "ray.head-down":  # its fix starts vLLM too
        return effect.id == "vllm.down"
    return cause.plane in {"host", "docker"} and not cause.id.endswith(".starting")


def _far(cause: Finding, effect: Finding) -> bool:
    # A host that is not reached from one side does not excuse another pair of hosts.
    return not effect.id.startswith("network.") and cause.id != effect.id


@cache
def depth(identity: str) -> int:
    """How many causes may lie beneath a finding of that id. There is no circle among them."""
    named = [c for c in causes_of(identity) if "*" not in c and c != identity]
    return 1 + max((depth(cause) for cause in named), default=-1)


def ordered(
    findings: Iterable[Finding], *, replicas: bool = False
) -> list[tuple[Finding, Finding | None]]:
    """Findings with what explains each, causes first. `replicas`: each vLLM is of its host alone.

    Among causes: a run under way, then by depth, plane and host; warnings last.
    """
    wide = tuple(pattern for pattern in WIDE if not (replicas and pattern == "vllm.*"))
    every = [*findings]
    runs = [f for f in every if f.id == RUN]
    every = [peaceful(f, runs, explained=any(explains(run, f) for run in runs)) for f in every]
    causes = [f for f in every if f.id != RUN and not any(explains(run, f) for run in runs)]
    reasons = {
        id(f): next((c for c in (*causes, *runs) if explains(c, f, wide)), None) for f in every
    }
    rows = [(f, reasons[id(f)]) for f in sorted(every, key=lambda f: _key(f, reasons[id(f)]))]
    return _with_starts(rows)


def _with_starts(
    rows: list[tuple[Finding, Finding | None]],
) -> list[tuple[Finding, Finding | None]]:
    """A unit that gave up over a cause does not come back when that is mended: its start is part of
    the fix. A deploy starts every unit by itself."""
    whole: dict[int, Finding] = {}
    for cause, why in rows:
        down = [f for f, reason in rows if reason is cause and f.found.startswith(GAVE_UP)]
        if why is None and down and not any(step.on in {HERE, BY_HAND} for step in cause.fix):
            starts = tuple(step for finding in down for step in finding.fix)
            whole[id(cause)] = replace(cause, fix=(*cause.fix, *starts))
    return [(whole.get(id(f), f), whole.get(id(why), why) if why else None) for f, why in rows]


def _key(finding: Finding, reason: Finding | None) -> tuple[bool, bool, bool, int, int, str, str]:
    return (
        finding.severity == "warning",
        reason is not None,
        finding.id != RUN,
        depth(finding.id),
        PLANES.index(finding.plane),
        finding.id,
        finding.host,
    )
