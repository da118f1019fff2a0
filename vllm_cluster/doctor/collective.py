"""all-reduce and send/recv between the hosts, in the very image and environment of vLLM."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import Any

from vllm_cluster.control.remote import root_command, ssh_argv
from vllm_cluster.doctor.nccl_log import Transport, transport
from vllm_cluster.doctor.reach import SSH_FAILED, pool, run
from vllm_cluster.plan import HostPlan, Plan
from vllm_cluster.plan.containers import VLLM
from vllm_cluster.spec import Cluster

PORT = 47989
TIMEOUT_S = 120
_MARK = "@@result "
_SILENT = "@@silent "
_WAITED = re.compile(
    r"[Tt]imed? ?out|closed by|[Cc]onnection (?:reset|closed|refused)|connectFullMesh|"
    r"ncclRemoteError|DistStoreError|DistNetworkError"
)
# What belongs to the running container alone.
_OWN = ("--name=", "--entrypoint=", "--label=", "--pid=", "--ipc=container:", "--rm")


@dataclass(frozen=True)
class Line:
    """One size: seconds of one all-reduce, and of one send to the next rank and back."""

    size_bytes: int
    all_reduce_s: float
    send_recv_s: float

    @property
    def gbit_s(self) -> float:
        """Of the send: there and back, two messages."""
        return 2 * self.size_bytes * 8 / 1e9 / self.send_recv_s if self.send_recv_s else 0.0


@dataclass(frozen=True)
class Collective:
    """What came of it. `error`: the words of the host that failed, and which that was. `blind`:
    SSH did not reach it, so nothing is known of the collectives."""

    backend: str
    lines: tuple[Line, ...]
    transport: Transport
    seconds: float
    error: str = ""
    failed: str = ""
    blind: bool = False


def test(cluster: Cluster, plan: Plan) -> Collective:
    """One process a host, all at once. Takes seconds, and one GPU's leftover memory a host."""
    hosts = list(plan.hosts.values())
    backend = "nccl" if plan.accelerator == "nvidia" else "gloo"

    def one(pair: tuple[int, HostPlan]) -> tuple[str, str, str]:
        rank, host = pair
        argv = [*ssh_argv(cluster, host), root_command(cluster, _command(plan, host, rank))]
        reply = run(argv, program(), timeout_s=TIMEOUT_S + 30)
        return host.name, reply.out, reply.err if reply.code != SSH_FAILED else _SILENT + reply.err

    with pool(len(hosts)) as threads:
        said = list(threads.map(one, enumerate(hosts)))
    return read(backend, said)


def _command(plan: Plan, host: HostPlan, rank: int) -> str:
    container = next(c for name, c in host.containers.items() if name != VLLM or len(
        host.containers) == 1)  # fmt: skip
    options = [option for option in container.options if not option.startswith(_OWN)]
    head = plan.hosts[plan.head].address
    argv = [
        "timeout", "-k", "5", str(TIMEOUT_S), "docker", "run", "--rm", "--interactive",
        *options, "--env=NCCL_DEBUG=INFO", "--env=OMP_NUM_THREADS=1", "--entrypoint=python3",
        container.image, "-", str(rank), str(len(plan.hosts)), head, str(PORT), plan.accelerator,
    ]  # fmt: skip
    return shlex.join(argv)


def program() -> str:
    """The Python program that each container runs."""
    return (resources("vllm_cluster.doctor") / "collective_program.txt").read_text("utf-8")


def read(backend: str, said: list[tuple[str, str, str]]) -> Collective:
    """The outcome from what each host printed: (host, standard output, standard error)."""
    log = "\n".join(out + err for _, out, err in said)
    results: dict[str, dict[str, Any]] = {}
    for name, out, _ in said:
        for line in out.splitlines():
            if line.startswith(_MARK):
                results[name] = json.loads(line.removeprefix(_MARK))
    missing = [(name, out, err) for name, out, err in said if name not in results]
    found = transport(log)
    if missing:
        # Those that waited for it in vain are not the cause, and end later.
        silent = [row for row in missing if row[2].startswith(_SILENT)]
        alone = [row for row in missing if not _WAITED.search(_words(row[1] + "\n" + row[2]))]
        name, out, err = (*silent, *alone, *missing)[0]
        words = _words(out + "\n" + err.removeprefix(_SILENT))
        return Collective(backend, (), found, 0.0, words, name, blind=bool(silent))
    slowest = max(results.values(), key=lambda result: float(result["seconds"]))
    lines = tuple(Line(int(s), float(a), float(p)) for s, a, p in slowest["lines"])
    return Collective(backend, lines, found, float(slowest["seconds"]))


def _words(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and "NCCL INFO" not in line]
    errors = [line for line in lines if re.search(r"Error|error|WARN|refused|timed out", line)]
    return (errors or lines or ["no words"])[-1].strip()[:400]
