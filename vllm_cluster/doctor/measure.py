"""The network between hosts, measured: ping for time, iperf3 for rate, in both directions; and
the RDMA ports as they are meanwhile."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from vllm_cluster.control.remote import root_command, ssh_argv
from vllm_cluster.doctor.reach import Reply, everywhere, pool, run
from vllm_cluster.facts.doctor.gpu_model import RdmaPort
from vllm_cluster.facts.doctor.read_network import rdma
from vllm_cluster.facts.doctor.script import rdma_script
from vllm_cluster.facts.doctor.sections import Sections
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
    """Two hosts. `there` is from `a` to `b`. Times in milliseconds. `error`: why it is empty.

    `route` and `card_mtu`: of `a`'s way to `b`; `route_back` and `card_mtu_back`: of the other.
    `mtu`: the largest packet that passes whole.
    """

    a: str
    b: str
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    mtu: int = 0
    route: str = ""
    card_mtu: int = 0
    route_back: str = ""
    card_mtu_back: int = 0
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
    with pool(2) as threads:
        server = threads.submit(_run, cluster, b, _server(b, a))
        reply = _run(cluster, a, _client(b))
        served = server.result()
    if "no iperf3" in served.out + reply.out:
        where = b.name if "no iperf3" in served.out else a.name
        return Pair(a.name, b.name, error=f"iperf3 is not on {where}: apt-get install -y iperf3")
    return read(a.name, b.name, reply.out, reply.err or served.err, back=served.out)


def _run(cluster: Cluster, host: HostPlan, script: str) -> Reply:
    argv = [*ssh_argv(cluster, host), root_command(cluster, "bash -s")]
    return run(argv, script, timeout_s=90)


def rdma_ports(cluster: Cluster, plan: Plan) -> dict[str, tuple[RdmaPort, ...]]:
    """State and error counters of each host's RDMA ports; hosts that do not answer are left out."""
    hosts = list(plan.hosts.values())
    replies = everywhere(cluster, hosts, dict.fromkeys(plan.hosts, rdma_script()), timeout_s=30)
    return {name: rdma(Sections(reply.out)) for name, reply in replies.items() if reply.out.strip()}


def _server(host: HostPlan, client: HostPlan) -> str:
    one = f"timeout 30 iperf3 --server --one-off --bind {host.address} --port {PORT} >/dev/null"
    lines = ["command -v iperf3 >/dev/null || { echo no iperf3; exit; }", *_way(client)]
    return "\n".join(lines) + "\n" + f"{one}\n" * 4


def _way(peer: HostPlan) -> list[str]:
    """Bash that prints the route to a host, and its card's MTU, which is then in `mtu` too."""
    address = shlex.quote(peer.address)
    return [
        f"echo @@route; ip -o -4 route get {address}",
        f"card=$(ip -o -4 route get {address} | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')",
        "mtu=$(ip -o link show \"$card\" | sed -n 's/.* mtu \\([0-9]*\\).*/\\1/p')",
        'echo @@card; echo "$mtu"',
    ]


def _client(host: HostPlan) -> str:
    address = shlex.quote(host.address)
    lines = [
        "command -v iperf3 >/dev/null || { echo no iperf3; exit; }",
        *_way(host),
        f"echo @@ping; ping -n -q -c {PINGS} -i 0.02 -W 1 {address}",
        "echo @@mtu; low=1200; high=$mtu",
        # One lost packet proves nothing.
        f"if ping -n -q -c 3 -i 0.2 -W 1 -M do -s $((mtu-28)) {address} >/dev/null; "
        "then low=$mtu; else",
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


def read(a: str, b: str, output: str, error: str = "", *, back: str = "") -> Pair:
    """What the client's script printed, and in `back` the server's."""
    parts, behind = dict(_parts(output)), dict(_parts(back))
    rtt = re.search(r"= [\d.]+/([\d.]+)/[\d.]+/([\d.]+) ms", parts.get("ping", ""))
    loss = re.search(r"([\d.]+)% packet loss", parts.get("ping", ""))
    pair = Pair(
        a, b,
        rtt_ms=float(rtt[1]) if rtt else 0.0,
        jitter_ms=float(rtt[2]) if rtt else 0.0,
        loss=float(loss[1]) / 100 if loss else 1.0,
        mtu=_number(parts.get("mtu", "")),
        route=_route(parts),
        card_mtu=_number(parts.get("card", "")),
        route_back=_route(behind),
        card_mtu_back=_number(behind.get("card", "")),
    )  # fmt: skip
    try:
        flows = {name: _flow(parts[name]) for name in
                 ("one-there", "one-back", "many-there", "many-back")}  # fmt: skip
    except (KeyError, ValueError) as problem:
        # A path that loses large packets ends here, and its MTU is what is to be known.
        return replace(pair, error=error.strip() or str(problem))
    return replace(
        pair,
        there=Flow(flows["one-there"][0], flows["many-there"][0], flows["one-there"][1]),
        back=Flow(flows["one-back"][0], flows["many-back"][0], flows["one-back"][1]),
    )


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _route(parts: dict[str, str]) -> str:
    return " ".join(parts.get("route", "").partition(" uid")[0].split())


def card_of(route: str) -> str:
    """The card that a route takes; empty where the route does not say."""
    match = re.search(r"\bdev (\S+)", route)
    return match[1] if match else ""


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


@dataclass(frozen=True)
class Kept:
    """What was measured last time, when, and the best of each pair at any time."""

    time_s: float = 0.0
    pairs: dict[tuple[str, str], Pair] = field(default_factory=dict)
    best: dict[tuple[str, str], Pair] = field(default_factory=dict)


def save(path: Path, measured: list[Pair], before: Kept) -> None:
    """Keep it for the next time, and the best beside it: else a link that has become slow would be
    told of once, and from then on be what is usual."""
    path.parent.mkdir(parents=True, exist_ok=True)
    best = dict(before.best)
    for pair in measured:
        if pair.gbit_s > best.get((pair.a, pair.b), Pair(pair.a, pair.b)).gbit_s:
            best[pair.a, pair.b] = pair
    rows = {"pairs": measured, "best": list(best.values())}
    kept = {"time_s": time.time(), **{n: [asdict(pair) for pair in r] for n, r in rows.items()}}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(kept, indent=1) + "\n")
    new.replace(path)


def last_time(path: Path) -> Kept:
    """What was kept; nothing where it cannot be read."""
    try:
        kept = json.loads(path.read_text())
        pairs = _pairs(kept["pairs"])
        # Versions before kept no best.
        return Kept(float(kept["time_s"]), pairs, _pairs(kept["best"]) if "best" in kept else pairs)
    except (OSError, ValueError, KeyError, TypeError):
        return Kept()  # of another version, or damaged: nothing to compare with


def _pairs(rows: list[dict[str, Any]]) -> dict[tuple[str, str], Pair]:
    found = {}
    for row in rows:
        flows = {n: Flow(**row[n]) if row[n] else None for n in ("there", "back")}
        pair = Pair(**{**row, **flows})
        found[pair.a, pair.b] = pair
    return found


def fallen(now: Pair, before: Kept) -> str:
    """How much slower it is than last time, or than at its best; empty when it is not."""
    for what, kept in (("last time", before.pairs), ("at its best", before.best)):
        then = kept.get((now.a, now.b))
        if then is not None and then.gbit_s and now.gbit_s < then.gbit_s * _FALLEN:
            return f"than {what}: {now.gbit_s:.2f} Gbit/s, {what} {then.gbit_s:.2f}"
    return ""
