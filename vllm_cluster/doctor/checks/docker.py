"""Docker: there, running, with the image of the plan, and no containers that nobody planned."""

from __future__ import annotations

import json
from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.doctor.first_cause import first_cause, message
from vllm_cluster.doctor.starting import since, starting
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.facts.doctor.script import DAEMON_JSON
from vllm_cluster.plan import HostPlan
from vllm_cluster.plan.containers import RAY_HEAD, RAY_WORKER, VLLM

_UNIT = "docker.service"
# Of dockerd (moby, daemon/config/config.go).
_CONFLICT = "specified both as a flag and in the configuration file"
_START = f"systemctl reset-failed {_UNIT}; systemctl enable --now {_UNIT}"


def daemon(case: Case) -> Iterator[Finding]:
    """The daemon answers; where it does not, why."""
    for host, facts in case.deployed():
        docker, unit = facts.docker, facts.unit(_UNIT)
        if unit.load == "masked":
            yield Finding(
                "docker.masked", "docker", host.name,
                expected=f"{_UNIT} running",
                found="it is masked: nothing can start it",
                evidence=f"{_UNIT}: {unit.load} {unit.active}",
                fix=on(host.name, f"systemctl unmask {_UNIT} docker.socket && {_START}"),
            )  # fmt: skip
        elif not docker.installed:
            yield Finding(
                "docker.missing", "docker", host.name,
                expected="Docker", found="no docker on PATH", evidence="docker: command not found",
                fix=case.run_deploy(),
            )  # fmt: skip
        elif docker.error:
            yield _not_answering(case, host, facts)


def _not_answering(case: Case, host: HostPlan, facts: HostFacts) -> Finding:
    unit = facts.unit(_UNIT)
    problem = json_problem(facts.contents.get(DAEMON_JSON, ""))
    if problem:
        # The deploy writes the file and starts Docker: without it, it would begin with another
        # data-root and without limits to its logs.
        aside = f"mv {DAEMON_JSON} {DAEMON_JSON}.broken && systemctl reset-failed {_UNIT}"
        return Finding(
            "docker.config", "docker", host.name,
            expected=f"{DAEMON_JSON} as JSON",
            found="it is none, so Docker does not start",
            evidence=problem,
            fix=(*on(host.name, aside), *case.run_deploy()),
        )  # fmt: skip
    conflict = next((line for line in reversed(unit.log) if _CONFLICT in line), "")
    if conflict:
        keys = conflict.partition(f"{_CONFLICT}: ")[2].partition(":")[0] or "an option"
        return Finding(
            "docker.config", "docker", host.name,
            expected=f"each option in {DAEMON_JSON} or among {_UNIT}'s flags",
            found=f"{keys} in both, so Docker does not start",
            evidence=message(conflict)[1].strip()[:300],
            fix=by_hand(f"On {host.name}, take {keys} out of {DAEMON_JSON}, or out of ExecStart= "
                        f"of {_UNIT} (systemctl edit --full {_UNIT}); then {_START}"),
        )  # fmt: skip
    if starting(facts, unit):
        return Finding(
            "docker.starting", "docker", host.name,
            expected=f"{_UNIT} running, and its daemon answering",
            found=since(facts, unit),
            evidence=facts.docker.error.splitlines()[-1][:300],
            fix=by_hand("Wait; what runs in containers comes back by itself when it answers"),
        )  # fmt: skip
    return Finding(
        "docker.down", "docker", host.name,
        expected=f"{_UNIT} running, and its daemon answering",
        found=f"{_UNIT} is {unit.active} ({unit.result})",
        evidence=first_cause(unit.log) if unit.log and not unit.running
        else facts.docker.error.splitlines()[-1][:300],
        fix=on(host.name, _START if not unit.running else f"systemctl restart {_UNIT}"),
    )  # fmt: skip


def json_problem(text: str) -> str:
    """Why `text` is no JSON object; empty when it is one, or there is nothing."""
    if not text.strip():
        return ""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        return f"{DAEMON_JSON}: {error}"
    return "" if isinstance(found, dict) else f"{DAEMON_JSON}: no object"


def image(case: Case) -> Iterator[Finding]:
    """The image is there, and the running containers were made of it."""
    for host, facts in case.deployed():
        docker = facts.docker
        if not docker.installed or docker.error or in_place.other_image(case, facts):
            continue
        if not docker.image_id:
            yield Finding(
                "docker.image-missing", "docker", host.name,
                expected=f"the image {case.plan.image}",
                found="it is not on this host",
                evidence=docker.image_error[:300],
                fix=case.run_deploy(),
            )  # fmt: skip
            continue
        for name in host.containers:
            container = docker.containers.get(name)
            if container is None or not container.running or container.image == docker.image_id:
                continue
            yield Finding(
                "docker.image-unequal", "docker", host.name,
                expected=f"{name} made of {docker.image_id[:19]}, as the plan and the other hosts",
                found=f"it runs {container.image[:19]}",
                evidence=f"docker inspect {name}: {container.image}",
                fix=on(host.name, f"systemctl restart {name}.service"),
                about=tuple(other for other in case.plan.hosts if other != host.name),
            )  # fmt: skip


def leftover(case: Case) -> Iterator[Finding]:
    """Containers of Ray or vLLM that no unit of the plan runs: by hand, or left by a guide."""
    for host, facts in case.deployed():
        for container in facts.docker.containers.values():
            if not container.running or container.name in {
                *host.containers,
                *in_place.units(facts),
            }:
                continue
            ours = container.name in {RAY_HEAD, RAY_WORKER, VLLM}
            if ours or container.image == facts.docker.image_id != "":
                yield Finding(
                    "docker.leftover", "docker", host.name,
                    expected=f"of the cluster's image only {', '.join(host.containers)}",
                    found=f"the container {container.name} as well, which takes part in nothing "
                    "planned and holds GPUs and ports",
                    evidence=f"docker ps: {container.name} {container.status}",
                    fix=on(host.name, f"docker rm --force {container.name}"),
                )  # fmt: skip


def unsupervised(case: Case) -> Iterator[Finding]:
    """A container of ours whose unit does not run: Docker, not systemd, keeps it alive."""
    for host, facts in case.deployed():
        for name in host.containers:
            container, unit = facts.docker.containers.get(name), facts.unit(f"{name}.service")
            if container is None or not container.running:
                continue
            if unit.active in {"inactive", "failed"}:
                yield Finding(
                    "docker.leftover", "docker", host.name,
                    expected=f"{name} run by {name}.service",
                    found=f"the container runs, the unit is {unit.active}",
                    evidence=f"docker ps: {name} {container.status}; "
                    f"restart policy {container.restart}",
                    fix=on(host.name, f"docker rm --force {name}; "
                           f"systemctl start --no-block {name}.service"),
                )  # fmt: skip


def logs(case: Case) -> Iterator[Finding]:
    """Logs of containers that grow without end (https://github.com/docker/cli/issues/1148)."""
    for host, facts in case.deployed():
        text = facts.contents.get(DAEMON_JSON, "")
        if facts.docker.log_driver == "json-file" and "max-size" not in text:
            yield Finding(
                "docker.logs-grow", "docker", host.name,
                expected="container logs that are rotated",
                found="json-file without max-size",
                evidence="docker info: Logging Driver: json-file",
                fix=case.run_deploy(),
                severity="warning",
            )  # fmt: skip


def live_restore(case: Case) -> Iterator[Finding]:
    """Containers that outlive the daemon: a unit ends with its `docker run`, and what that started
    goes on without it, with GPUs and ports, until Docker comes back and the unit removes it."""
    for host, facts in case.deployed():
        if not facts.docker.live_restore:
            continue
        in_file = "live-restore" in facts.contents.get(DAEMON_JSON, "")
        if in_file:
            # Docker takes it over while it runs, from a key that is there (daemon/reload.go).
            edit = by_hand(f'On {host.name}, "live-restore": false in {DAEMON_JSON}')
            fix = (*edit, *on(host.name, f"systemctl reload {_UNIT}"))
        else:
            fix = by_hand(f"On {host.name}, take --live-restore out of ExecStart= of {_UNIT} "
                          f"(systemctl edit --full {_UNIT}); it counts from Docker's next start, "
                          "which ends what serves")  # fmt: skip
        yield Finding(
            "docker.live-restore", "docker", host.name,
            expected="containers that end with Docker, as their units do",
            found="live-restore: they outlive it, and nothing watches them then",
            evidence="docker info: Live Restore Enabled: true",
            fix=fix,
            severity="warning",
        )  # fmt: skip


CHECKS = (daemon, image, leftover, unsupervised, logs, live_restore)
