"""The files of the units, and a digest of all that a running container was started with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from vllm_cluster.plan import HostPlan, Plan, environment, generations, paths, probe
from vllm_cluster.plan.containers import VLLM, labelled
from vllm_cluster.steps.render import plain, render


def environment_file(plan: Plan, host: HostPlan, interface: str) -> str:
    """The text of cluster.env on `host`, whose fabric address is on `interface`."""
    values = environment.own(host.address, interface) | plan.environment
    return render(paths.ENVIRONMENT, plan=plan, host=host, environment=values)


def digest(plan: Plan, host: HostPlan, unit: str, env: str, secrets: Mapping[str, str]) -> str:
    """16 hex digits over everything that `unit` reads at its start, and over the head's part.

    A worker belongs to one session of the head, so what changes the head restarts it too.
    """
    head = plan.hosts[plan.head].containers
    inside = [plain(f"{paths.SCRIPTS}/serve"), environment.not_carried_json()]
    parts = [
        # A change of the unit alone is a change too: it goes the way that is judged, and back.
        unit_file(plan, host, unit, ""),
        host.containers[unit].run(),
        head["ray-head"].run() if plan.backend == "ray" else (),
        plan.weights.identity,
        env,
        sorted(secrets.items()),
        inside if unit == VLLM else (),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def generation(plan: Plan, secrets: Mapping[str, str]) -> str:
    """The identity of all that restarts a container of the cluster when it changes."""
    parts = [
        (name, unit, digest(plan, host, unit, "", secrets))
        for name, host in sorted(plan.hosts.items())
        for unit in host.units
    ]
    whole = json.dumps([parts, sorted(plan.environment.items())])
    return hashlib.sha256(whole.encode()).hexdigest()[: generations.ID_DIGITS]


def unit_file(plan: Plan, host: HostPlan, unit: str, config: str) -> str:
    """The text of `unit`'s file, its container labelled with `config`."""
    container = labelled(host.containers[unit], config)
    path = f"{paths.UNITS}/{unit}.service"
    values = {"plan": plan, "host": host, "container": container, "paths": paths}
    values |= {"gcs_port": gcs_port(plan), "gcs_sources": gcs_sources(plan)}
    check = plan.weights.check(f"{unit}.service")
    return render(path, **values, started_from=started_from(unit), check=check)


def gcs_port(plan: Plan) -> int:
    """The port of Ray's GCS on the head."""
    return int(plan.gcs_address.rpartition(":")[2])


def gcs_sources(plan: Plan) -> list[str]:
    """Who may reach Ray's GCS: hosts of the plan, and whom the description opens its port to."""
    port = gcs_port(plan)
    rules = plan.hosts[plan.head].allow
    return sorted({s for r in rules if not r.ports or port in r.ports for s in r.sources})


def probe_file(plan: Plan, host: HostPlan) -> str:
    """The text of probe.py, which asks Ray and vLLM on `host`."""
    ports = {use.name: use.first for use in plan.ports}
    return render(
        f"{paths.SCRIPTS}/probe.py", plan=plan, host=host, paths=paths,
        dashboard_port=ports.get("ray dashboard", 0), agent_port=ports.get("ray agent http", 0),
        requests=probe.REQUESTS,
    )  # fmt: skip


def started_from(unit: str) -> tuple[str, str]:
    """The files that `unit` reads at its start, and notes the digest of (`attempt begin`)."""
    return (f"{paths.UNITS}/{unit}.service", paths.ENVIRONMENT)


def started_digest(unit_text: str, env: str) -> str:
    """What `attempt begin` notes where nobody has changed those files."""
    return hashlib.sha256((unit_text + env).encode()).hexdigest()
