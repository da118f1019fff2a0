"""The measured network, put against what the plan needs of it and against last time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.doctor.measure import Pair, fallen
from vllm_cluster.doctor.need import Need

# More of either is felt: a lost packet costs TCP 200 ms.
_LOSS = 0.001
_JITTER_MS = 2.0


def state_file(cluster: str) -> Path:
    """Where the last measurement of a cluster is kept on this machine."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "vllm-cluster" / "network" / f"{cluster}.json"


@dataclass(frozen=True)
class Report:
    """What was measured, needed, and measured last time."""

    pairs: list[Pair]
    needs: list[Need]
    before_s: float
    before: dict[tuple[str, str], Pair]

    def problems(self) -> list[str]:
        """What is wrong, a line each; empty when the network does."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        for pair in self.pairs:
            name = f"{pair.a} - {pair.b}"
            if pair.error:
                yield f"{name}: could not measure: {pair.error}"
                continue
            if not pair.gbit_s:
                yield f"{name}: no data came through, though small packets do: look at the MTU"
            if pair.loss > _LOSS:
                yield f"{name}: {100 * pair.loss:.1f} % of packets are lost"
            if pair.jitter_ms > _JITTER_MS:
                yield f"{name}: the round-trip time differs by {pair.jitter_ms:.1f} ms"
            words = fallen(pair, self.before.get((pair.a, pair.b)))
            if words:
                yield f"{name}: slower than last time: {words}"
            for need in self.needs:
                good, verdict = need.verdict(pair.gbit_s, pair.rtt_ms / 1e3)
                if need.planned and not good and pair.gbit_s:
                    yield f"{name}: {verdict}"

    @property
    def exit_code(self) -> int:
        """0 it does, 1 it does not, 2 nothing could be measured."""
        if self.pairs and all(pair.error for pair in self.pairs):
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
            yield f"    route      {pair.route}"
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
            before = self.before.get((pair.a, pair.b))
            if before is not None and not before.error:
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.before_s))
                yield f"    last time  {before.gbit_s:.2f} Gbit/s, {before.rtt_ms:.3f} ms ({when})"
        problems = self.problems()
        yield ""
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
            "problems": self.problems(),
        }
