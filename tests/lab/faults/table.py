"""docs/faults.md out of results: `python -m tests.lab.faults.table [COMMIT…]`, the newest first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.lab.faults import more, two
from tests.lab.faults.run import RESULTS, commit
from tests.lab.harness import ROOT

DOCUMENT = ROOT / "docs" / "faults.md"
LABS = {
    "two": ("Two hosts, PP=2", two.FAULTS),
    "three": ("Three hosts, PP=3", more.THREE),
    "four": ("Four hosts of two stand-in GPUs, TP=2 x PP=4", more.FOUR),
}
_HEAD = """# After a fault it serves again by itself

Written by `make test-faults`; each row names the commit that it was measured on. Each fault was
put into a cluster of lab hosts that serves with real Ray and vLLM, while a client streamed one
completion after another. Nobody did anything after that: *a person needed* reads "yes" where
it did not serve within a quarter of an hour.

- **serves again**: from the end of the fault (a killed process: at once; a pulled cable: when it is
  in again; a power cut: when the host has booted) to the end of the first whole stream of 200
  tokens that began after it.
- **of that vLLM**: from the start of vLLM's container to the end of that stream, what vLLM takes by
  itself on this machine.
- **ours**: the rest, to the start of vLLM's container: noticing, ending, waiting, starting Ray.
  Where another time-out than ours forces it, that is named.
- **load**: of this machine; above its two cores, everything takes longer than by itself.

{machine}
"""
_COLUMNS = (
    "fault", "a person needed", "serves again", "of that vLLM", "ours", "what the client saw",
    "forced by", "load", "commit",
)  # fmt: skip


def main() -> None:
    """Write it; says what has no result. Of several commits the first that has one counts."""
    commits = sys.argv[1:] or [commit()]
    rows = {lab: _results(commits, lab) for lab in LABS}
    loads = [row["load"] for told in rows.values() for row in told.values()]
    machine = (
        f"The machine has two cores, which the start of vLLM alone fills; its load was "
        f"{min(loads):.0f} to {max(loads):.0f}, above 5 with other work beside."
    )
    text = [_HEAD.format(machine=machine)]
    missing = []
    for lab, (title, faults) in LABS.items():
        missing += [f"{lab}/{fault.name}" for fault in faults if fault.name not in rows[lab]]
        if not rows[lab]:
            continue
        text += [f"## {title}", "", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        text += [_row(rows[lab][fault.name]) for fault in faults if fault.name in rows[lab]]
        text.append("")
    if missing:
        text += [f"Without a result: {', '.join(missing)}.", ""]
    DOCUMENT.write_text("\n".join(text), encoding="utf-8")
    print(
        f"{DOCUMENT}: {sum(map(len, rows.values()))} faults, without a result: {missing or 'none'}"
    )


def _results(commits: list[str], lab: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for of in reversed(commits):
        folder: Path = RESULTS / of / lab
        for file in sorted(folder.glob("*.json")):
            row = json.loads(file.read_text())
            found[row["name"]] = {**row, "commit": of}
    return found


def _seconds(time_s: float | None) -> str:
    return "-" if time_s is None else f"{time_s:.0f} s"


def _row(row: dict[str, Any]) -> str:
    lost = row["recovered_s"] is None
    own = "goes on" if not row["restarted"] else _seconds(row["vllm_start_s"])
    ours = "0 s" if not row["restarted"] else _seconds(row["overhead_s"])
    cells = [
        row["words"], "yes" if lost else "no", _seconds(row["recovered_s"]), own, ours,
        row["client"], row["forced"] or "-", f"{row['load']:.0f}", f"`{row['commit'][:8]}`",
    ]  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
