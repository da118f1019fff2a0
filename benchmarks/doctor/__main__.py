"""Times `vllm-cluster doctor` as a whole process on lab hosts; writes docs/bench-doctor.md.

Two hosts that were brought to the end of deploys/cluster.py with the stand-in image, and sixteen
bare ones, which are asked as much: all of them share this machine's cores, as sixteen real hosts
would not. The machine's load before each row is named, for it is in the figures.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.conftest import with_standin
from tests.lab.doctor.many import described
from tests.lab.harness import ROOT, Cluster
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

RUNS = 9
LIMITS_S = {2: 3.0, 16: 6.0}
DOCUMENT = ROOT / "docs" / "bench-doctor.md"
SETTLE_S = 240.0


@dataclass(frozen=True)
class Row:
    """Times of the runs on one cluster. `load`: the machine's, over the minute before."""

    hosts: int
    state: str
    load: float
    own_s: list[float]
    whole_s: list[float]

    def text(self) -> str:
        """A line of the table."""
        own, whole = statistics.median(self.own_s), statistics.median(self.whole_s)
        return (
            f"| {self.hosts} | {self.state} | {whole:.2f} s | {own:.2f} s | {min(self.whole_s):.2f}"
            f" s | {max(self.whole_s):.2f} s | {LIMITS_S[self.hosts]:.0f} s | {self.load:.1f} |"
        )

    @property
    def holds(self) -> bool:
        """Whether the median of the whole process is within the limit."""
        return statistics.median(self.whole_s) < LIMITS_S[self.hosts]


def main() -> None:
    """Measure, print, write the table; exit 1 where a limit does not hold."""
    rows = [
        _measured(2, "deployed", lambda lab, folder: _deployed(with_standin(folder, lab))),
        _measured(16, "bare", lambda lab, folder: with_standin(folder, lab, described(lab))),
    ]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    table = [
        "# How long doctor takes",
        "",
        f"`vllm-cluster doctor` as a whole process, imports included; medians of {RUNS} runs on lab"
        f" hosts that share {os.cpu_count()} cores, at commit {commit}, Python "
        f"{platform.python_version()}. Written by `make bench-doctor`. Load is this machine's over "
        "the minute before the first run: above the number of cores, others worked on it as well. "
        "Two hosts have a stand-in for Ray and vLLM, which does not answer.",
        "",
        "| hosts | state | median | of it looking | fastest | slowest | limit | load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(row.text() for row in rows),
    ]
    DOCUMENT.write_text("\n".join(table) + "\n")
    sys.exit(0 if all(row.holds for row in rows) else 1)


def _measured(hosts: int, state: str, make: Callable[[Lab, Path], Cluster]) -> Row:
    with _lab(hosts) as lab, tempfile.TemporaryDirectory() as folder:
        cluster = make(lab, Path(folder))
        _seconds(cluster)
        _settle()
        load = os.getloadavg()[0]
        pairs = [_seconds(cluster) for _ in range(RUNS)]
    row = Row(hosts, state, load, [own for own, _ in pairs], [whole for _, whole in pairs])
    print(row.text(), flush=True)
    return row


def _settle() -> None:
    """Sixteen hosts that have just booted are busy, and so is the machine that all of them are."""
    end_s = time.monotonic() + SETTLE_S
    while os.getloadavg()[0] > (os.cpu_count() or 1) and time.monotonic() < end_s:
        time.sleep(5)


@contextmanager
def _lab(hosts: int) -> Iterator[Lab]:
    lab = Lab.up(hosts, name=lab_name(f"b-doctor-{hosts}"))
    try:
        yield lab
    finally:
        lab.down()


def _deployed(cluster: Cluster) -> Cluster:
    cluster.apply()
    return cluster


def _seconds(cluster: Cluster) -> tuple[float, float]:
    """What doctor says that its look took, and what the whole process took."""
    program = str(Path(sys.executable).parent / "vllm-cluster")
    # As installed: from compiled files, whatever this shell says of writing them.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    done = subprocess.run(
        [program, "doctor", "--json", str(cluster.description)],
        cwd=ROOT, check=False, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    whole_s = time.perf_counter() - began
    own_s: float = json.loads(done.stdout)["seconds"]
    return own_s, whole_s


if __name__ == "__main__":
    main()
