"""Times `vllm-cluster plan` as a whole process, imports included; writes docs/bench-plan.md.

Paired with `python -c 'import pydantic'`, which any typed description costs, so that a slow or
busy machine shows in both.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RUNS = 9
HOSTS = (2, 64)
MODEL = ROOT / "tests" / "fixtures" / "models" / "Llama-3.3-70B-Instruct"


def description(hosts: int) -> str:
    """The example with `hosts` hosts of four GPUs, a stage on each."""
    data = yaml.safe_load((ROOT / "inventories" / "prod.yaml").read_text())
    data["hosts"] = {
        f"node-{n}": {"address": f"192.168.1.{n + 10}", "gpus": 4} for n in range(hosts)
    }
    data["head"] = "node-0"
    data["parallel"]["pipeline"] = hosts
    data["model"]["source"] = str(MODEL)
    text: str = yaml.safe_dump(data)
    return text


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, and write the table."""
    program = str(Path(sys.executable).parent / "vllm-cluster")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for hosts in HOSTS:
            file = Path(folder) / f"{hosts}.yaml"
            file.write_text(description(hosts))
            plan = [program, "plan", str(file)]
            base = [sys.executable, "-c", "import pydantic"]
            seconds(plan)
            pairs = [(seconds(plan), seconds(base)) for _ in range(RUNS)]
            rows.append(_row(hosts, pairs))
            print(rows[-1])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    table = [
        "# How long a plan takes",
        "",
        "`vllm-cluster plan` as a whole process, imports included, weighing a 70B model; medians "
        f"of {RUNS} runs, each paired with `python -c 'import pydantic'`. Written by "
        f"`make bench-plan` at commit {commit}, Python {platform.python_version()}.",
        "",
        "| hosts | median | fastest | slowest | importing pydantic alone |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    (ROOT / "docs" / "bench-plan.md").write_text("\n".join(table) + "\n")


def _row(hosts: int, pairs: list[tuple[float, float]]) -> str:
    plans, bases = [p for p, _ in pairs], [b for _, b in pairs]
    figures = [statistics.median(plans), min(plans), max(plans), statistics.median(bases)]
    return f"| {hosts} | " + " | ".join(f"{figure:.2f} s" for figure in figures) + " |"


if __name__ == "__main__":
    main()
