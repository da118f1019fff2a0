"""Measure the fan-out against rsync on shaped links; write docs/bench-weights.md.

    python -m benchmarks.weights.bench                everything, then the table
    python -m benchmarks.weights.bench --way fan-out  one way; the others keep their results
    python -m benchmarks.weights.bench --missing      what has no result yet
    python -m benchmarks.weights.bench --report       the table only

Every measurement is kept in docs/bench-weights.json, from which the table is made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.weights.fleet import make_model
from benchmarks.weights.meter import Meter
from benchmarks.weights.net import Net
from benchmarks.weights.report import write_report
from benchmarks.weights.ways import WAYS, Place

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "bench-weights.json"
SHARDS = 64


@dataclass(frozen=True)
class Case:
    """One measurement. rate_mbit 0: links as fast as the machine."""

    way: str
    receivers: int
    rate_mbit: int
    shard_bytes: int
    run: int = 1

    @property
    def key(self) -> str:
        return f"{self.rate_mbit} Mbit/s to {self.receivers}, {self.way}, run {self.run}"


# (receivers, Mbit/s): MiB a shard for the fan-out, for rsync; how often the fan-out is measured.
# The fan-out runs for about 45 s (10 s at 1 Gbit/s), or what is seen is how 9 and 17 interpreters
# start on two cores; rsync's time is proportional to the bytes, so its model is smaller where it
# takes minutes.
_PLAN = {
    (1, 1000): (16, 16, 3),
    (1, 200): (16, 8, 3),
    (2, 200): (16, 2, 1),
    (4, 200): (16, 2, 1),
    (8, 200): (16, 2, 3),
    (16, 100): (8, 1, 3),
    (1, 0): (16, 16, 3),
}


def all_cases() -> list[Case]:
    """Every measurement; rsync to one host is the same at once and one after the other."""
    cases = []
    for (receivers, rate), (own_mib, rsync_mib, runs) in _PLAN.items():
        for way in WAYS:
            if way == "fan-out":
                cases += [Case(way, receivers, rate, own_mib << 20, n + 1) for n in range(runs)]
            elif receivers > 1 or way != "rsync over ssh, all at once":
                cases.append(Case(way, receivers, rate, rsync_mib << 20))
    return cases


def go_first() -> None:
    """Let the hosts' processes preempt whatever else the machine does: a host of a cluster has its
    cores for itself. They need under half of two cores."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def measure(case: Case, base: Path) -> dict[str, float]:
    """Seconds, processor seconds, bytes on the first host's link, model bytes."""
    with tempfile.TemporaryDirectory(prefix="vcw-bench-", dir=base) as name:
        directory = Path(name)
        size = make_model(directory / "source", SHARDS, case.shard_bytes)
        with Net("bench", case.receivers + 1, case.rate_mbit or None) as net, Meter() as meter:
            place = Place(net, directory, directory / "source", meter.prefix)
            sent = net.sent_bytes(0)
            seconds = WAYS[case.way](place)
            sent = net.sent_bytes(0) - sent
            time.sleep(0.2)  # the last processes leave the group
            used = meter.used_s()
    return {"seconds": seconds, "cpu_s": used, "sent_bytes": sent, "model_bytes": size}


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--missing", action="store_true", help="only what has no result yet")
    parser.add_argument("--receivers", type=int, help="only with so many receivers")
    parser.add_argument("--rate", type=int, help="only at that rate, Mbit/s")
    parser.add_argument("--way", help="only this way")
    parser.add_argument("--seconds", type=float, default=1e9, help="start none after this long")
    parser.add_argument("--report", action="store_true", help="only write the table")
    parser.add_argument("--base", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    go_first()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    end = time.monotonic() + options.seconds
    for case in [] if options.report else all_cases():
        wanted = (
            options.receivers in {None, case.receivers}
            and options.rate in {None, case.rate_mbit}
            and options.way in {None, case.way}
        )
        if not wanted or (options.missing and case.key in results):
            continue
        if time.monotonic() > end:
            break
        result = measure(case, options.base)
        results[case.key] = {**asdict(case), **result, "commit": commit()}
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"{case.key}: {result}", flush=True)
    write_report(list(results.values()), ROOT / "docs" / "bench-weights.md")


if __name__ == "__main__":
    if shutil.which("rsync") is None:
        raise SystemExit("rsync is not installed; it is what the fan-out is measured against")
    main()
