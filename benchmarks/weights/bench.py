"""Measure the fan-out against rsync on shaped links; write docs/bench-weights.md.

    python -m benchmarks.weights.bench                  everything that has no result yet, the table
    python -m benchmarks.weights.bench --again fan-out  measure a way anew
    python -m benchmarks.weights.bench --report         the table only

Results are kept under .cache/bench-weights, one file a measurement.
"""

from __future__ import annotations

import argparse
import json
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
RESULTS = ROOT / ".cache" / "bench-weights"
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
    def file(self) -> Path:
        name = f"{self.way}-{self.receivers}-{self.rate_mbit}-{self.run}".replace(" ", "_")
        return RESULTS / f"{name.replace(',', '')}.json"


def all_cases() -> list[Case]:
    """The fan-out three times where it has a target, rsync once. rsync's model is smaller where
    it takes minutes: its time is proportional to the bytes."""
    cases = []
    for receivers, rate in ((1, 1000), (1, 200), (2, 200), (4, 200), (8, 200), (16, 100), (1, 0)):
        # Half a minute and more each, or starting 9 and 17 interpreters on two cores is what is seen
        own = (16 << 20) if rate in {0, 1000} else (12 << 20) if rate == 200 else (6 << 20)
        rsync = (
            min(own, 8 << 20)
            if receivers == 1 and rate
            else own
            if receivers == 1
            else (2 << 20)
            if receivers < 16
            else (1 << 20)
        )
        runs = 1 if receivers in {2, 4} else 3
        cases += [Case("fan-out", receivers, rate, own, run + 1) for run in range(runs)]
        cases += [Case(way, receivers, rate, rsync) for way in WAYS if way != "fan-out"]
    return [
        case for case in cases
        if not (case.receivers == 1 and case.way.startswith("rsync over ssh, all"))
    ]  # fmt: skip


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
    parser.add_argument("--again", help="measure this way anew")
    parser.add_argument("--receivers", type=int, help="only with so many receivers")
    parser.add_argument("--rate", type=int, help="only at that rate, Mbit/s")
    parser.add_argument("--way", help="only this way")
    parser.add_argument("--seconds", type=float, default=1e9, help="start none after this long")
    parser.add_argument("--report", action="store_true", help="only write the table")
    parser.add_argument("--base", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    for case in [] if options.report else all_cases():
        wanted = (
            options.receivers in {None, case.receivers}
            and options.rate in {None, case.rate_mbit}
            and options.way in {None, case.way}
        )
        if not wanted or (case.file.exists() and options.again != case.way):
            continue
        if time.monotonic() > end:
            break
        result = measure(case, options.base)
        case.file.write_text(json.dumps({**asdict(case), **result, "commit": commit()}))
        print(f"{case}: {result}", flush=True)
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    write_report(results, ROOT / "docs" / "bench-weights.md")


if __name__ == "__main__":
    if shutil.which("rsync") is None:
        raise SystemExit("rsync is not installed; it is what the fan-out is measured against")
    main()
