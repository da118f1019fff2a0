"""The measured network, put against what the plan needs of it and against last time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_cluster.doctor.finding import Finding
from vllm_cluster.doctor.measure import Kept, Pair, card_of, fallen
from vllm_cluster.doctor.need import Need
from vllm_cluster.facts.doctor.gpu_model import RdmaPort

# More of either is felt: a lost packet costs TCP 200 ms.
_LOSS = 0.001
_JITTER_MS = 2.0
# The search for the largest packet ends when it knows that to so many bytes.
_MTU_STEP = 4


def state_file(cluster: str) -> Path:
    """Where the last measurement of a cluster is kept on this machine."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "vllm-cluster" / "network" / f"{cluster}.json"


@dataclass(frozen=True)
class Report:
    """What was measured, needed, and measured before; RDMA ports by host, and what is wrong with
    them."""

    pairs: list[Pair]
    needs: list[Need]
    before: Kept = field(default_factory=Kept)
    rdma: Mapping[str, tuple[RdmaPort, ...]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def problems(self) -> list[str]:
        """What is wrong, a line each; empty when the network does."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        for pair in self.pairs:
            name = f"{pair.a} - {pair.b}"
            if pair.error:
                yield f"{name}: could not measure: {pair.error}"
            if words := _path(pair):
                yield f"{name}: {words}"
            if pair.error:
                continue
            if not pair.gbit_s:
                yield f"{name}: no data came through, though small packets do: look at the MTU"
            if pair.loss > _LOSS:
                yield f"{name}: {100 * pair.loss:.1f} % of packets are lost"
            if pair.jitter_ms > _JITTER_MS:
                yield f"{name}: the round-trip time differs by {pair.jitter_ms:.1f} ms"
            if words := fallen(pair, self.before):
                yield f"{name}: slower {words}"
            for need in self.needs:
                good, verdict = need.verdict(pair.gbit_s, pair.rtt_ms / 1e3)
                if need.planned and not good and pair.gbit_s:
                    yield f"{name}: {verdict}"
        for finding in self.findings:
            if finding.severity == "failing":
                yield _said(finding)

    @property
    def exit_code(self) -> int:
        """0 it does, 1 it does not, 2 nothing could be measured."""
        if self.pairs and all(pair.error and not _path(pair) for pair in self.pairs):
            return 2
        return 1 if self.problems() else 0

    def text(self) -> str:
        """For people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for pair in self.pairs:
            yield f"{pair.a} - {pair.b}"
            if pair.error or pair.there is None or pair.back is None:
                yield f"    could not measure: {pair.error}"
                continue
            yield f"    {pair.a} > {pair.b}: {pair.route} (MTU {pair.card_mtu})"
            yield f"    {pair.b} > {pair.a}: {pair.route_back} (MTU {pair.card_mtu_back})"
            yield f"    round trip {pair.rtt_ms:.3f} ms, jitter {pair.jitter_ms:.3f} ms, " \
                f"loss {100 * pair.loss:.1f} %, path carries {pair.mtu} bytes"  # fmt: skip
            for arrow, flow in ((f"{pair.a} > {pair.b}", pair.there),
                                (f"{pair.b} > {pair.a}", pair.back)):  # fmt: skip
                yield f"    {arrow}: {flow.one_gbit_s:.2f} Gbit/s with one stream, " \
                    f"{flow.many_gbit_s:.2f} with four, {flow.retransmits} retransmits"  # fmt: skip
            for need in self.needs:
                good, verdict = need.verdict(pair.gbit_s, pair.rtt_ms / 1e3)
                mark = "ok  " if good else "FAIL" if need.planned else "no  "
                yield f"    {mark} {verdict}"
            before = self.before.pairs.get((pair.a, pair.b))
            if before is not None and not before.error:
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.before.time_s))
                yield f"    last time  {before.gbit_s:.2f} Gbit/s, {before.rtt_ms:.3f} ms ({when})"
            best = self.before.best.get((pair.a, pair.b))
            if best is not None and best != before:
                yield f"    best       {best.gbit_s:.2f} Gbit/s, {best.rtt_ms:.3f} ms"
        for host, ports in self.rdma.items():
            for port in ports:
                yield f"RDMA {host} {port.name}: {_port(port)}"
        problems = self.problems()
        yield ""
        yield from (f"warn  {_said(f)}" for f in self.findings if f.severity != "failing")
        yield from problems or [self._verdict()]

    def _verdict(self) -> str:
        if not self.pairs:
            return "One host alone: there is no link to measure."
        if not self.needs:
            return (
                "Nothing is wrong with the links. What the plan needs of them is not known: the "
                "model's config.json is not on this machine, or its kind is not counted."
            )
        return "The network does what the plan needs."

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "exit_code": self.exit_code,
            "pairs": [asdict(pair) | {"gbit_s": pair.gbit_s} for pair in self.pairs],
            "needs": [asdict(need) | {"gbit_s": need.gbit_s} for need in self.needs],
            "rdma": {host: [asdict(port) for port in ports] for host, ports in self.rdma.items()},
            "findings": [finding.to_json() for finding in self.findings],
            "problems": self.problems(),
        }


def _path(pair: Pair) -> str:
    """Why large packets are lost between these two, with the fix; empty when none are.

    Where not even small packets come back, the largest that passes is not known.
    """
    cards = {pair.a: (card_of(pair.route), pair.card_mtu),
             pair.b: (card_of(pair.route_back), pair.card_mtu_back)}  # fmt: skip
    known = {name: (card, mtu) for name, (card, mtu) in cards.items() if card and mtu}
    largest = max((mtu for _, mtu in known.values()), default=0)
    if not pair.mtu or not pair.rtt_ms or pair.mtu + _MTU_STEP >= largest:
        return ""
    less = {name: card for name, (card, mtu) in known.items() if mtu != largest}
    if less:
        fix = "; ".join(f"on {n}: ip link set dev {c} mtu {largest}" for n, c in less.items())
        return f"one card sends {largest} bytes, the other takes {pair.mtu}; {fix}"
    fix = "; ".join(f"on {n}: ip link set dev {c} mtu {pair.mtu}" for n, (c, _) in known.items())
    return (
        f"the cards send {largest} bytes, the path carries {pair.mtu}, and large requests hang: "
        f"make what lies between them carry {largest}, or, on all hosts of the fabric, {fix}"
    )


def _port(port: RdmaPort) -> str:
    bad = ", ".join(f"{name} {count}" for name, count in sorted(port.errors.items()) if count)
    counted = bad or ("no errors" if port.errors else "errors not counted")
    return f"{port.state} {port.physical}, {port.rate_gbit:g} Gbit/s, {port.layer}, {counted}"


def _said(finding: Finding) -> str:
    steps = "; ".join(step.text() for step in finding.fix)
    return f"{finding.host}: {finding.expected}: {finding.found}; {steps}"
