"""Units as the plan has them: there, loaded, enabled, with the planned command."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import HERE, Finding, Step, on
from vllm_cluster.doctor.starting import stopped
from vllm_cluster.facts.doctor.model import HostFacts, Unit
from vllm_cluster.facts.doctor.script import unit_names
from vllm_cluster.plan import HostPlan, members, paths
from vllm_cluster.plan.containers import CONFIG_LABEL
from vllm_cluster.plan.signs import Plane


def plane_of(unit: str) -> Plane:
    """The plane in which a unit of ours works."""
    if unit == paths.FIREWALL_UNIT:
        return "security"
    return "vllm" if unit.startswith("vllm.") else "ray"


def installed(case: Case) -> Iterator[Finding]:
    """Every unit of the plan is there, not masked, enabled, and loaded as it lies on the disk."""
    for host, facts in case.deployed():
        started = {f"{container}.service" for container in host.containers}
        for name in unit_names(host):
            unit, plane = facts.unit(name), plane_of(name)
            if unit.load == "not-found" and in_place.lacks(host, facts, name):
                continue  # see generation
            if unit.load == "masked":
                yield _masked(case, host.name, unit, plane)
            elif unit.load == "not-found":
                yield Finding(
                    f"{plane}.unit-missing", plane, host.name,
                    expected=name, found="no such unit",
                    evidence=f"systemctl show {name}: LoadState=not-found",
                    fix=case.run_deploy(),
                )  # fmt: skip
            elif unit.file_state == "disabled" and not (name in started and stopped(unit)):
                yield Finding(
                    f"{plane}.disabled", plane, host.name,
                    expected=f"{name} enabled, so that it starts at every boot",
                    found="disabled",
                    evidence=f"systemctl is-enabled {name}: disabled",
                    fix=on(host.name, f"systemctl enable --now --no-block {name}"),
                )  # fmt: skip
            elif unit.need_reload:
                yield Finding(
                    f"{plane}.not-loaded", plane, host.name,
                    expected=f"{name} as it lies on the disk",
                    found="systemd has not read it since it changed",
                    evidence=f"systemctl show {name}: NeedDaemonReload=yes",
                    fix=on(host.name, "systemctl daemon-reload"),
                )  # fmt: skip


def left(case: Case) -> Iterator[Finding]:
    """Hosts that the others remember and the description has no more: they run what they ran."""
    plan, gone = case.plan, dict[str, str]()
    for _, facts in case.seen():
        known = members.read(facts.contents.get(paths.MEMBERS, ""))
        if known is not None:
            hosts = {name: host.ssh for name, host in plan.hosts.items()}
            gone |= members.after(known.text(), plan.cluster, hosts).left
    for name, address in sorted(gone.items()):
        down = f"vllm-cluster down {case.description} --host {name}"
        yield Finding(
            "host.left", "host", plan.head,
            expected=f"{name} ({address}) cleaned, since the description has it no more",
            found=f"{name} may still run units of this cluster",
            evidence=f"{paths.MEMBERS} names it among the hosts of {plan.cluster}",
            fix=(Step(HERE, down), Step(HERE, f"{down} --forget  # if it is gone for good")),
            severity="warning",
        )  # fmt: skip


def _masked(case: Case, host: str, unit: Unit, plane: Plane) -> Finding:
    # Our units lie in /etc, where a mask takes the file's own place.
    return Finding(
        f"{plane}.masked", plane, host,
        expected=f"{unit.name} free to start",
        found="it is masked: nothing can start it",
        evidence=f"systemctl show {unit.name}: LoadState=masked",
        fix=(Step(host, f"systemctl unmask {unit.name}"), *case.run_deploy()),
    )  # fmt: skip


def commands(case: Case) -> Iterator[Finding]:
    """The command line of each unit, and what systemd was told beside it."""
    for host, facts in case.deployed():
        for name, container in host.containers.items():
            unit = f"{name}.service"
            drop_ins = [d for d in facts.unit(unit).drop_ins if not d.endswith("/rdma.conf")]
            differing = in_place.difference(container, facts)
            plane = plane_of(unit)
            if differing and not facts.as_kept(f"{paths.UNITS}/{unit}"):
                yield Finding(
                    f"{plane}.unit-changed", plane, host.name,
                    expected=f"{unit} with {differing[0] or 'nothing more'}",
                    found=differing[1] or "nothing there",
                    evidence=f"{paths.UNITS}/{unit}",
                    fix=(*case.run_deploy(), *_restart(host, facts, unit)),
                )  # fmt: skip
            elif drop_ins:
                yield Finding(
                    f"{plane}.unit-changed", plane, host.name,
                    expected=f"{unit} as the plan has it",
                    found=f"changed by {', '.join(drop_ins)}",
                    evidence=f"systemctl show {unit}: DropInPaths={' '.join(drop_ins)}",
                    fix=on(host.name, f"rm {' '.join(drop_ins)} && systemctl daemon-reload && "
                           f"systemctl restart --no-block {unit}"),
                )  # fmt: skip


def _restart(host: HostPlan, facts: HostFacts, unit: str) -> tuple[Step, ...]:
    """A container that was started with the changed file carries the right label all the same, so
    the deploy takes it for one of its own."""
    file, since_s = facts.files.get(f"{paths.UNITS}/{unit}"), facts.unit(unit).started_s
    # One that only starts now is started again by the deploy, where it has to be.
    early = facts.unit(unit).active == "activating"
    if early or file is None or file.changed_s > since_s + 1:
        return ()
    return on(host.name, f"systemctl restart --no-block {unit}")


def stale(case: Case) -> Iterator[Finding]:
    """A running container that was started with another configuration than its unit's."""
    for host, facts in case.deployed():
        for name in host.containers:
            unit = f"{name}.service"
            running = facts.docker.containers.get(name)
            wanted = _label(facts.contents.get(f"{paths.UNITS}/{unit}", ""))
            if running is None or not running.running or not wanted:
                continue
            if facts.generations.pending is not None:
                continue  # the host itself ends what is not of the generation that stays
            plane = plane_of(unit)
            label = running.config
            if label == wanted:
                continue
            yield Finding(
                f"{plane}.stale", plane, host.name,
                expected=f"{name} running with today's configuration",
                found=f"it runs {label or 'without a label'}, the unit has {wanted}",
                evidence=f"docker inspect {name}: {CONFIG_LABEL}={label}",
                fix=on(host.name, f"systemctl restart --no-block {unit}"),
            )  # fmt: skip


def _label(text: str) -> str:
    match = re.search(rf"--label={re.escape(CONFIG_LABEL)}=([0-9a-f]+)", text)
    return match[1] if match else ""


CHECKS = (installed, left, commands, stale)
