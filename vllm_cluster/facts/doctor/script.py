"""The script that reads a host: values of the plan, then the files of gather/."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from functools import cache
from importlib.resources import files as resources

from vllm_cluster.facts import gcs_table
from vllm_cluster.plan import HostPlan, Plan, paths, probe
from vllm_cluster.plan.containers import VLLM
from vllm_cluster.plan.run_lock import LOCK
from vllm_cluster.plan.signs import NOISE, causes

# Where nobody listens: "refused" proves that the hosts' firewalls let the data plane's ephemeral
# ports through, "dropped" that one does not.
UNUSED_PORT = 47991
MARK = "@@vllm-cluster"
COMPLETION_LIMIT_S = 10
SYSTEM_UNITS = (
    "docker.service", "containerd.service", "nftables.service", "ufw.service",
    "firewalld.service", "chrony.service", "chronyd.service", "systemd-timesyncd.service",
    "ntpsec.service", "unattended-upgrades.service", "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
)  # fmt: skip
VERIFY_TIMER = f"{paths.WEIGHTS_VERIFY}.timer"
DAEMON_JSON = "/etc/docker/daemon.json"
# Who asks for so much of the journals reads logs, and gets a megabyte of Ray's own files as well.
_ALL_LOGS = 1000


def script(
    plan: Plan, host: HostPlan, *, salt: str, log_lines: int = 0, deep: bool = False,
    keyless: bool = True,
) -> str:  # fmt: skip
    """Bash that prints all that doctor wants to know of `host`, as root, and changes nothing.

    `salt` makes the digests of secrets good for comparing within one run only. `log_lines`: how
    much of the units' journals to bring beside that of failing ones; with many, the ends of Ray's
    own files too. `deep`: let DCGM run its short diagnosis too, half a minute a host. `keyless`:
    see that the API asks for its key, which leaves a line with 401 in vLLM's log.
    """
    values = "\n".join(_values(plan, host, salt, log_lines, deep=deep, keyless=keyless))
    program = f"{gcs_table.SHELL}{_program()}"
    return f"{values}\nvalues={shlex.quote(values)}\n{program}\nmain </dev/null\n"


def port(plan: Plan, name: str) -> int:
    """The first port of the plan that is used for `name`; 0 where the plan has none."""
    return next((use.first for use in plan.ports if use.name == name), 0)


def peer_ports(plan: Plan, peer: HostPlan) -> list[int]:
    """The ports by which a peer is tried."""
    if plan.backend != "ray":
        return [UNUSED_PORT]
    gcs = [port(plan, "ray gcs")] if peer.name == plan.head else []
    return [*gcs, port(plan, "ray node manager"), UNUSED_PORT]


def unit_names(host: HostPlan) -> list[str]:
    """The units that the deploy makes on `host`."""
    return [paths.FIREWALL_UNIT, *(f"{unit}.service" for unit in host.units)]


def watchdog_of(unit: str) -> str:
    """The unit that watches `unit`, which is named without its suffix."""
    return f"vllm-cluster-watch@{unit}.service"


def _values(
    plan: Plan, host: HostPlan, salt: str, log_lines: int, *, deep: bool, keyless: bool
) -> list[str]:
    ours = unit_names(host)
    peers = [
        f"{peer.name} {peer.address} {' '.join(map(str, peer_ports(plan, peer)))}"
        for peer in plan.hosts.values()
        if peer.name != host.name
    ]
    secrets = [paths.RAY_TOKEN] if plan.backend == "ray" else []
    if VLLM in host.containers and plan.api_key:
        secrets.append(paths.API_KEY)
    units = [f"{paths.UNITS}/{unit}" for unit in ours]
    shown = [
        "/etc/hosts",
        DAEMON_JSON,
        paths.ENVIRONMENT,
        paths.MEMBERS,
        paths.WEIGHTS_VERIFIED,
        *units,
    ]
    requests = [
        f"{path} {json.dumps({'model': plan.model_name, **body})}"
        for path, body in probe.REQUESTS.items()
    ]
    return [
        _array("peers", peers),
        _array("units", [*ours, *map(watchdog_of, host.units), VERIFY_TIMER, *SYSTEM_UNITS]),
        _array("ours", ours),
        _array("containers", host.containers),
        _array("files", [paths.ENVIRONMENT, paths.FIREWALL, *units]),
        _array("secrets", secrets),
        _array("completion_requests", requests),
        _array("shown_files", shown),
        _array("planned_ports", [f"{use.first}-{use.last}" for use in plan.ports]),
        *(
            f"{name}={shlex.quote(str(value))}"
            for name, value in {
                "mark": MARK,
                "self": f"{host.name} {host.address}",
                "address": host.address,
                "role": host.role,
                "serves": "yes" if VLLM in host.containers else "no",
                "ray": "yes" if plan.backend == "ray" else "no",
                "accelerator": plan.accelerator,
                "image": plan.image,
                "model_path": plan.model_path,
                "weights": plan.weights_directory,
                "state": paths.STATE,
                "ray_directory": paths.RAY_SESSIONS,
                "generation_tool": paths.GENERATION_TOOL,
                "generations": paths.GENERATIONS,
                "daemon_json": DAEMON_JSON,
                "secrets_directory": paths.SECRETS,
                "units_state": paths.UNITS_STATE,
                "run_lock": LOCK,
                "agent_port": port(plan, "ray agent http"),
                "dashboard_port": port(plan, "ray dashboard"),
                "api_port": plan.api_port,
                "token_file": paths.RAY_TOKEN,
                "api_key_file": paths.API_KEY if plan.api_key else "",
                "completion_limit": COMPLETION_LIMIT_S,
                "salt": salt,
                "log_lines": log_lines,
                "noise": NOISE.replace("^", ": "),
                "causes": _of_journal("|".join(causes())),
                "ray_words": "yes" if log_lines >= _ALL_LOGS else "no",
                "deep": "yes" if deep else "no",
                "keyless": "yes" if keyless and plan.api_key else "no",
            }.items()
        ),
    ]


def _of_journal(pattern: str) -> str:
    """The pattern for lines of a journal: before the message stand time, host and program."""
    return re.sub(r"(?<!\[)\^", r"^\\d+\\.\\d+ \\S+ [^:]+: ", pattern)


def _array(name: str, items: Iterable[str]) -> str:
    return f"{name}=({' '.join(map(shlex.quote, items))})"


@cache
def _program() -> str:
    folder = resources("vllm_cluster.facts.doctor") / "gather"
    parts = sorted((part for part in folder.iterdir()), key=lambda part: part.name)
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def rdma_script() -> str:
    """Bash that prints the RDMA ports of a host and nothing else."""
    folder = resources("vllm_cluster.facts.doctor") / "gather"
    parts = (folder / name for name in ("00-frame.sh", "15-rdma.sh"))
    text = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return f"mark={shlex.quote(MARK)}\n{text}\ninfiniband </dev/null\nbegin end\n"
