"""Turn measurements into docs/bench-weights.md, with a verdict on every target."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

Result = dict[str, Any]
_HEAD = """# Weights to many hosts: measured

Made by `make bench-weights`; do not edit. Hosts are network namespaces on one bridge of one
machine with {cores} cores, every link shaped both ways (tc tbf, MTU 1500: 4.6 % of a link are
headers, so 1.046 is the best possible ratio). 64 shards; files lie in memory (tmpfs), because one
disk would have to be that of 17 hosts. The time runs from the start of the first process until the
last host has all of it verified (rsync: until it ends; it verifies what it received, not what it
wrote, and does not sync). "ratio" is that time over size / link rate; "origin" the bytes on the
first host's link over the model's (large packets count their headers once); "CPU" the processor
seconds of all processes of all hosts per GB delivered, measured by a cgroup. The fan-out is the
median of its runs, with all of them beside it. The processes run ahead of whatever else the machine
does (nice -20 or real-time): the hosts of a cluster have their cores for themselves.

| link | hosts | way | model | time | ratio | origin | CPU s/GB | commit |
|---|---|---|---|---|---|---|---|---|"""


def write_report(results: list[Result], target: Path) -> None:
    groups: dict[tuple[int, int, str], list[Result]] = {}
    for result in results:
        key = (result["rate_mbit"], result["receivers"], result["way"])
        groups.setdefault(key, []).append(result)
    lines = [_HEAD.format(cores=_cores())]
    order = sorted(groups, key=lambda k: (k[0] == 0, k[1], -k[0], k[2]))
    lines += [_row(key, groups[key]) for key in order]
    lines += ["", "## Targets", "", "| target | measured | met |", "|---|---|---|"]
    lines += _targets(groups)
    target.write_text("\n".join(lines) + "\n")


def _cores() -> int:
    return Path("/proc/cpuinfo").read_text().count("processor\t")


def _ratio(result: Result) -> float:
    return float(result["seconds"] / (result["model_bytes"] * 8 / (result["rate_mbit"] * 1e6)))


def _origin(result: Result) -> float:
    return float(result["sent_bytes"] / result["model_bytes"])


def _cpu(result: Result) -> float:
    return float(result["cpu_s"] / (result["model_bytes"] * result["receivers"] / 1e9))


def _row(key: tuple[int, int, str], group: list[Result]) -> str:
    rate, receivers, way = key
    link = f"{rate} Mbit/s" if rate else "unshaped"
    times = [result["seconds"] for result in group]
    each = f" ({', '.join(f'{value:.1f}' for value in times)})" if len(times) > 1 else ""
    ratio = f"{median(map(_ratio, group)):.3f}" if rate else "-"
    return (
        f"| {link} | {receivers} | {way} | {group[0]['model_bytes'] / 2**20:.0f} MiB"
        f" | {median(times):.1f} s{each} | {ratio} | {median(map(_origin, group)):.3f}"
        f" | {median(map(_cpu, group)):.2f} | {', '.join(sorted({r['commit'] for r in group}))} |"
    )


def _targets(groups: dict[tuple[int, int, str], list[Result]]) -> list[str]:
    def own(rate: int, receivers: int) -> list[Result]:
        return groups.get((rate, receivers, "fan-out"), [])

    def row(text: str, value: float | None, limit: float) -> str:
        if value is None:
            return f"| {text} | not measured | - |"
        return f"| {text} | {value:.3f} | {'yes' if value < limit else 'NO'} |"

    def middle(values: list[float]) -> float | None:
        return median(values) if values else None

    eight, one = middle([_ratio(r) for r in own(200, 8)]), middle([_ratio(r) for r in own(200, 1)])
    every = [r for (_, _, way), group in groups.items() if way == "fan-out" for r in group]
    ssh = [
        _cpu(r)
        for (_, receivers, way), group in groups.items()
        if way.startswith("rsync over ssh") and receivers in {4, 8}
        for r in group
    ]
    own_cpu = middle([_cpu(r) for r in own(200, 8)])
    sixteen = middle([_ratio(r) for r in own(100, 16)])
    fast = middle([_ratio(r) for r in own(1000, 1)])
    pair = middle([_cpu(r) for r in own(0, 1)])
    growth = eight / one if eight and one else None
    cpu = own_cpu / min(ssh) if own_cpu and ssh else None
    sent = max(map(_origin, every)) if every else None
    return [
        row("8 hosts at 200 Mbit/s: ratio under 1.15", eight, 1.15),
        row("16 hosts at 100 Mbit/s: ratio under 1.25", sixteen, 1.25),
        row("1 host at 1 Gbit/s: ratio under 1.15", fast, 1.15),
        row("8 hosts over 1 host: under 1.10", growth, 1.10),
        row("the first host sends, worst run of all: under 1.05 models", sent, 1.05),
        row("CPU at 8 hosts over that of rsync over ssh: under 1", cpu, 1.0),
        row("CPU s/GB, unshaped pair: under 4.5, the bake-off's best that verifies", pair, 4.5),
    ]
