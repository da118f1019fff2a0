"""Docker, its containers, and what is inside of ours."""

from __future__ import annotations

import json
import re
from typing import Any

from vllm_cluster.facts.doctor.model import Container, Docker, Inside
from vllm_cluster.facts.doctor.sections import Section, Sections

_PACKAGE = re.compile(
    r"/(?:lib)/python([\d.]+)/[a-z]+-packages/(ray|vllm|torch)-([^/]+)\.dist-info"
)


def docker(sections: Sections) -> Docker:
    """See Docker."""
    section = sections.one("docker-info")
    if section.lines == ("no docker",):
        return Docker(installed=False)
    info = _object(section.lines)
    errors = info.get("ServerErrors") or ([] if info else [" ".join(section.lines) or "no answer"])
    if not errors and not sections.named("docker-image"):
        errors = ["docker ps: no answer"]
    containers = _containers(sections.one("containers"))
    if not errors and sections.named("containers") and not containers:
        errors = ["docker container inspect: no answer"]
    image = sections.one("docker-image").lines
    found = next((line for line in image if line.startswith("sha256:")), "")
    return Docker(
        error="; ".join(map(str, errors)),
        version=str(info.get("ServerVersion", "")),
        root=str(info.get("DockerRootDir", "")),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        log_driver=str(info.get("LoggingDriver", "")),
        live_restore=bool(info.get("LiveRestoreEnabled")),
        image_id=found,
        image_error="" if found else " ".join(image),
        containers=containers,
        inside={section.argument: _inside(section) for section in sections.named("inside")},
    )


def _object(lines: tuple[str, ...]) -> dict[str, Any]:
    for line in lines:
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(found, dict):
                return found
    return {}


def _containers(section: Section) -> dict[str, Container]:
    rows = (_object((line,)) for line in section.lines)
    found = (_container(row) for row in rows if row.get("name"))
    return {container.name: container for container in found}


def _container(row: dict[str, Any]) -> Container:
    state = row.get("state") or {}
    bound = {
        f"{item.get('HostIp') or '0.0.0.0'}:{item.get('HostPort')}"  # noqa: S104  what it shows
        for items in (row.get("ports") or {}).values()
        for item in items or []
    }
    return Container(
        name=str(row["name"]).lstrip("/"),
        id=str(row.get("id", "")),
        image=str(row.get("image", "")),
        running=bool(state.get("Running")),
        status=str(state.get("Status", "")),
        oom_killed=bool(state.get("OOMKilled")),
        exit_code=int(state.get("ExitCode") or 0),
        restart=str(row.get("restart") or ""),
        network=str(row.get("network") or ""),
        published=tuple(sorted(bound)),
        config=str(row.get("config") or ""),
    )


def _inside(section: Section) -> Inside:
    environment, packages, python = dict[str, str](), dict[str, str](), ""
    limits, devices, shm, namespace, nvml = dict[str, int](), [], (0, 0), "", ""
    for line in section.lines:
        word, _, rest = line.partition(" ")
        if word == "shm":
            shm = _shm(rest)
        elif word == "namespace":
            namespace = rest
        elif word == "nvml":
            nvml = rest
        elif word == "env":
            name, _, value = rest.partition("=")
            environment[name] = value
        elif word == "device":
            devices.append(rest)
        elif word == "package" and (match := _PACKAGE.search(rest)):
            python, packages[match[2]] = python or match[1], match[3]
        elif word == "python":
            python = rest
        elif match := re.match(r"Max (locked memory|open files|stack size)\s+(\S+)", line):
            limits[match[1]] = -1 if match[2] == "unlimited" else int(match[2])
    return Inside(
        section.argument, shm[0], shm[1], limits, environment, packages, python, tuple(devices),
        namespace, nvml,
    )  # fmt: skip


def _shm(text: str) -> tuple[int, int]:
    numbers = [int(word) for word in text.split() if word.isdigit()]
    if len(numbers) != 3:
        return 0, 0
    blocks, free, block_bytes = numbers
    return blocks * block_bytes, free * block_bytes
