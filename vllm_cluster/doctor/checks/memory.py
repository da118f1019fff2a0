"""Memory: /dev/shm and limits of the containers, the host's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.plan.containers import VLLM

# Ray's memory monitor kills workers at 95 % of the host's memory (ray_config_def.h).
_PRESSURE = 0.05
_SHM_FREE_BYTES = 64 * 2**20
_NAMES = {"memlock": "locked memory", "nofile": "open files", "stack": "stack size"}


def shm(case: Case) -> Iterator[Finding]:
    """/dev/shm inside the containers: Docker's 64 MB break NCCL, Ray and vLLM's queues."""
    for host, facts in case.deployed():
        for name, inside in facts.docker.inside.items():
            # vLLM over Ray shares the Ray head's.
            if name not in host.containers or (name == VLLM and case.plan.backend == "ray"):
                continue
            planned = not in_place.other_unit(host.containers[name], facts)
            if planned and 0 < inside.shm_bytes < case.plan.shm_bytes * 0.99:
                yield Finding(
                    "memory.shm", "memory", host.name,
                    expected=f"/dev/shm of {_mib(case.plan.shm_bytes)} in {name}",
                    found=_mib(inside.shm_bytes),
                    evidence=f"df {name}:/dev/shm: {inside.shm_bytes} bytes",
                    fix=on(host.name, f"systemctl restart --no-block {name}.service"),
                )  # fmt: skip
            elif inside.shm_bytes and inside.shm_free_bytes < _SHM_FREE_BYTES:
                yield Finding(
                    "memory.shm", "memory", host.name,
                    expected=f"room in /dev/shm of {name}",
                    found=f"{_mib(inside.shm_free_bytes)} of {_mib(inside.shm_bytes)} free",
                    evidence=f"df {name}:/dev/shm",
                    fix=on(host.name, f"systemctl restart --no-block {name}.service"),
                )  # fmt: skip


def limits(case: Case) -> Iterator[Finding]:
    """Limits of the containers' processes: RDMA needs locked memory, Ray open files
    (https://github.com/NVIDIA/nvidia-container-toolkit/issues/2037)."""
    for host, facts in case.deployed():
        for name, container in host.containers.items():
            inside = facts.docker.inside.get(name)
            if inside is None or in_place.other_unit(container, facts):
                continue
            for option in container.options:
                match = re.fullmatch(r"--ulimit=(\w+)=(-?\d+):-?\d+", option)
                if match is None or match[1] not in _NAMES:
                    continue
                wanted, found = int(match[2]), inside.limits.get(_NAMES[match[1]])
                if found is None or found == -1 or (wanted != -1 and found >= wanted):
                    continue
                yield Finding(
                    "memory.limits", "memory", host.name,
                    expected=f"{match[1]} {'unlimited' if wanted == -1 else wanted} in {name}",
                    found=str(found),
                    evidence=f"/proc/PID/limits: Max {_NAMES[match[1]]} {found}",
                    fix=on(host.name, f"systemctl restart --no-block {name}.service"),
                )  # fmt: skip


def pressure(case: Case) -> Iterator[Finding]:
    """Host memory nearly used up: Ray kills workers, the kernel kills anything."""
    for host, facts in case.seen():
        total, free = facts.system.memory_bytes, facts.system.available_bytes
        if total and free < total * _PRESSURE:
            yield Finding(
                "memory.pressure", "memory", host.name,
                expected="5 % of the host's memory free; Ray kills workers below",
                found=f"{_mib(free)} of {_mib(total)}",
                evidence=f"MemAvailable: {free // 1024} kB",
                fix=by_hand(f"End what uses it: ps -eo rss,pid,comm --sort=-rss on {host.name}"),
            )  # fmt: skip


def killed(case: Case) -> Iterator[Finding]:
    """What the kernel killed for want of memory since the boot."""
    for host, facts in case.seen():
        words = [line for line in facts.kernel_log if re.search("Out of memory|oom-kill", line)]
        gone = [c.name for c in facts.docker.containers.values()
                if c.oom_killed and c.name in host.containers]  # fmt: skip
        if not words and not gone:
            continue
        last_s = float(words[-1].split()[0].strip("[]")) if words and words[-1][0].isdigit() else 0
        units = [facts.unit(f"{name}.service") for name in host.containers]
        since = [unit for unit in units if not unit.running or unit.started_s < last_s]
        # It may have hit anything, and these would say it for weeks, until they start anew.
        over = case.serves and all(unit.running for unit in units)
        yield Finding(
            "memory.out", "memory", host.name,
            expected="memory enough for every process",
            found="the kernel killed " + (", ".join(gone) or "a process"),
            evidence=words[-1] if words else f"docker inspect {gone[0]}: OOMKilled=true",
            fix=by_hand("Lower serve.args.max-model-len or memory.object_store in "
                        f"{case.description}, or end what else runs on {host.name}"),
            severity="failing" if (gone or since) and not over else "warning",
        )  # fmt: skip


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"


CHECKS = (shm, limits, pressure, killed)
