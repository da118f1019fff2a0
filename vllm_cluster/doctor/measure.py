"""The network between hosts, measured: ping for time, iperf3 for rate, in both directions."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vllm_cluster.control.remote import root_command, ssh_argv
from vllm_cluster.doctor.reach import Reply, run
from vllm_cluster.plan import HostPlan, Plan
from vllm_cluster.spec import Cluster

# Like any port of the data plane: inside the cluster every port is open.
PORT = 47990
STREAMS = 4
SECONDS = 2
PINGS = 50
# A measurement differs by chance; this much less than last time does not.
_FALLEN = 0.7


@dataclass(frozen=True)
class Flow:
    """One direction of one pair. Rates in Gbit/s with one and with several streams."""

    one_gbit_s: float
    many_gbit_s: float
    retransmits: int


@dataclass(frozen=True)
class Pair:
    """Two hosts. `there` is from `a` to `b`. Times in milliseconds. `error`: why it is empty."""

    a: str
    b: str
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    mtu: int = 0
    route: str = ""
    there: Flow | None = None
    back: Flow | None = None
    error: str = ""

    @property
    def gbit_s(self) -> float:
        """The rate to count on: one stream, the slower direction."""
        flows = [flow for flow in (self.there, self.back) if flow is not None]
        return min((flow.one_gbit_s for flow in flows), default=0.0)


def pairs(plan: Plan) -> Iterator[tuple[HostPlan, HostPlan]]:
    """Neighbours in the pipeline, and the head with every other host, each pair once."""
    hosts = list(plan.hosts.values())
    head = hosts[0]
    told = set()
    for a, b in [*pairwise(hosts), *((head, host) for host in hosts[1:])]:
        if a.name != b.name and (a.name, b.name) not in told:
            told.add((a.name, b.name))
            yield a, b


def measure(cluster: Cluster, a: HostPlan, b: HostPlan) -> Pair:
    """Measure one pair: about ten seconds, at the links' full load."""
    with ThreadPoolExecutor(2) as pool:
        server = pool.submit(_run, cluster, b, _server(b))
        reply = _run(cluster, a, _client(b))
        served = server.result()
    if "no iperf3" in served.out + reply.out:
        where = b.name if "no iperf3" in served.out else a.name
        return Pair(a.name, b.name, error=f"iperf3 is not on {where}: apt-get install -y iperf3")
    return read(a.name, b.name, reply.out, reply.err or served.err)


def _run(cluster: Cluster, host: HostPlan, script: str) -> Reply:
    argv = [*ssh_argv(cluster, host), root_command(cluster, "bash -s")]
    return run(argv, script, timeout_s=90)


def _server(host: HostPlan) -> str:
    one = f"timeout 30 iperf3 --server --one-off --bind {host.address} --port {PORT} >/dev/null"
    return "command -v iperf3 >/dev/null || { echo no iperf3; exit; }\n" + f"{one}\n" * 4


def _client(host: HostPlan) -> str:
    address = shlex.quote(host.address)
    lines = [
        "command -v iperf3 >/dev/null || { echo no iperf3; exit; }",
        f"echo @@route; ip -o -4 route get {address}",
        f"card=$(ip -o -4 route get {address} | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')",
        "mtu=$(ip -o link show \"$card\" | sed -n 's/.* mtu \\([0-9]*\\).*/\\1/p')",
        f"echo @@ping; ping -n -q -c {PINGS} -i 0.02 -W 1 {address}",
        "echo @@mtu; low=1200; high=$mtu",
        f"if ping -n -c 1 -W 1 -M do -s $((mtu-28)) {address} >/dev/null; then low=$mtu; else",
        "while [ $((high-low)) -gt 4 ]; do middle=$(((low+high)/2))",
        f"if ping -n -c 1 -W 1 -M do -s $((middle-28)) {address} >/dev/null",
        'then low=$middle; else high=$middle; fi; done; fi; echo "$low"',
    ]
    for name, options in (("one-there", ""), ("one-back", "--reverse"),
                          ("many-there", f"--parallel {STREAMS}"),
                          ("many-back", f"--parallel {STREAMS} --reverse")):  # fmt: skip
        test = f"iperf3 --client {address} --port {PORT} --time {SECONDS} --json {options}"
        # The server's next turn begins a moment after its last one ended.
        lines.append(f"echo @@{name}; for try in $(seq 50); do out=$(timeout 20 {test} 2>&1); "
                     'case $out in *refused*|*busy*) sleep 0.1 ;; *) break ;; esac; done; '
                     'echo "$out"')  # fmt: skip
    return "\n".join(lines) + "\n"


def read(a: str, b: str, output: str, error: str = "") -> Pair:
    """What the client's script printed."""
    parts = dict(_parts(output))
    try:
        flows = {name: _flow(parts[name]) for name in
                 ("one-there", "one-back", "many-there", "many-back")}  # fmt: skip
    except (KeyError, ValueError) as problem:
        return Pair(a, b, error=error.strip() or str(problem))
    rtt = re.search(r"= [\d.]+/([\d.]+)/[\d.]+/([\d.]+) ms", parts.get("ping", ""))
    loss = re.search(r"([\d.]+)% packet loss", parts.get("ping", ""))
    mtu = parts.get("mtu", "").strip()
    return Pair(
        a, b,
        rtt_ms=float(rtt[1]) if rtt else 0.0,
        jitter_ms=float(rtt[2]) if rtt else 0.0,
        loss=float(loss[1]) / 100 if loss else 1.0,
        mtu=int(mtu) if mtu.isdigit() else 0,
        route=" ".join(parts.get("route", "").partition(" uid")[0].split()),
        there=Flow(flows["one-there"][0], flows["many-there"][0], flows["one-there"][1]),
        back=Flow(flows["one-back"][0], flows["many-back"][0], flows["one-back"][1]),
    )  # fmt: skip


def _parts(output: str) -> Iterator[tuple[str, str]]:
    for part in output.split("@@")[1:]:
        name, _, text = part.partition("\n")
        yield name.strip(), text


def _flow(text: str) -> tuple[float, int]:
    """Gbit/s as received, and retransmits as the sender counted them."""
    found = json.loads(text[text.find("{") :])
    if "error" in found:
        raise ValueError(f"iperf3: {found['error']}")
    end: dict[str, Any] = found["end"]
    rate = float(end["sum_received"]["bits_per_second"]) / 1e9
    return rate, int(end["sum_sent"].get("retransmits") or 0)


def save(path: Path, measured: list[Pair]) -> None:
    """Keep it for the next time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"time_s": time.time(), "pairs": [asdict(pair) for pair in measured]}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(kept, indent=1) + "\n")
    new.replace(path)


def last_time(path: Path) -> tuple[float, dict[tuple[str, str], Pair]]:
    """When, and what was measured then; nothing where nothing was kept."""
    found = {}
    try:
        kept = json.loads(path.read_text())
        for row in kept["pairs"]:
            flows = {n: Flow(**row[n]) if row[n] else None for n in ("there", "back")}
            pair = Pair(**{**row, **flows})
            found[pair.a, pair.b] = pair
        return float(kept["time_s"]), found
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, {}  # of another version, or damaged: nothing to compare with


def fallen(now: Pair, before: Pair | None) -> str:
    """How much worse it is than last time; empty when it is not."""
    if before is None or not before.gbit_s or now.gbit_s >= before.gbit_s * _FALLEN:
        return ""
    return f"{now.gbit_s:.2f} Gbit/s, last time {before.gbit_s:.2f}"
