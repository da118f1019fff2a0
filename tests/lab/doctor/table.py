"""docs/doctor-faults.md out of the suite's results: `python -m tests.lab.doctor.table [COMMIT…]`.

One commit, HEAD by default. What it lacks may come from further ones, whose rows name theirs.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from tests.lab.doctor.pairs import PAIRS, REAL_PAIRS
from tests.lab.doctor.prove import FAULTS, ON_REAL, WITH_STANDINS, row_name
from tests.lab.doctor.suite import commit, kept
from tests.lab.harness import ROOT

DOCUMENT = ROOT / "docs" / "doctor-faults.md"
_HEAD = """# What doctor says of each fault

Written by `make test-doctor` at commit {commit}. It puts {faults} faults into a deployed cluster of
two lab hosts, one by one ({rows} rows: some into both images) and {pairs} pairs of them. Of each:
doctor's first failing line names the cause, its plane is right, and its fix, applied word for word,
leaves a cluster in which doctor finds nothing.

The last column says where: **real** is a cluster that serves with real Ray and vLLM; **stand-in**
is one whose hosts, systemd, Docker and deploy are real and in whose containers a small program
stands for Ray and vLLM, so that they do not answer is left out of account. Where something else
stands in for the real thing, it is named. Times are of one busy machine and say little.
"""


def rows() -> list[str]:
    """Names of all rows that the table must have."""
    alone = [row_name(FAULTS[name], real=False) for name in WITH_STANDINS]
    real = [row_name(FAULTS[name], real=True) for name in ON_REAL]
    return [*alone, *real, *("+".join(pair) for pair in (*PAIRS, *REAL_PAIRS))]


def write_table(of: str, *further: str) -> None:
    """Write it. What has no result is said at its end, and the exit code is 1."""
    found = kept(of)
    for commit_ in further:
        other = kept(commit_).items()
        found |= {name: row | {"at": commit_} for name, row in other if name not in found}
    missing = [name for name in rows() if name not in found]
    named = [name for name in rows() if name in found]
    alone = [found[name] for name in named if "+" not in name]
    pairs = [found[name] for name in named if "+" in name]
    head = _HEAD.format(commit=of, faults=len(FAULTS), rows=len(alone), pairs=len(pairs))
    others = sum("at" in found[name] for name in named)
    if others:
        head += (
            f"\n{len(named) - others} of the rows are of {of}. The other {others} name the commit\n"
            "by which they were proven, and were not tried again on this one.\n"
        )
    text = [head, "| symptom | plane | first line | found | fix | healed in | where |",
            "|---|---|---|---|---|---|---|"]  # fmt: skip
    text += [_row(row) for row in alone]
    text += ["", "## In pairs", "", "| together | doctor's order | where |", "|---|---|---|"]
    text += [_pair(row) for row in pairs]
    if missing:
        text += ["", "## Without a result yet", "", *(f"* {name}" for name in missing)]
    DOCUMENT.write_text("\n".join(text) + "\n", encoding="utf-8")
    if missing:
        sys.exit(f"no results of {', '.join(missing)}")


def _where(row: dict[str, Any]) -> str:
    what = [row["standin"]] if row.get("standin") else []
    what += [f"at {row['at']}"] if "at" in row else []
    return "; ".join(["real" if row["real"] else "stand-in", *what])


def _row(row: dict[str, Any]) -> str:
    cells = [row["symptom"], row["plane"], f"`{row['id']}` on {row['host']}", row["found"],
             "; ".join(f"`{step}`" for step in row["fix"]), f"{row['healed_s']} s",
             _where(row)]  # fmt: skip
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _pair(row: dict[str, Any]) -> str:
    both = " and ".join(FAULTS[name].symptom for name in row["pair"])
    order = ", ".join(f"`{name}`" for name in row["order"])
    return f"| {_cell(both)} | {order} | {_where(row)} |"


def _cell(text: str) -> str:
    # Folders of the run are no matter of the reader's.
    text = re.sub(r"\S*/lab\.py\b", "inventories/lab.py", text)
    text = re.sub(r"/\S*/\.lab/[^/\s]+/", ".lab/lab/", text)
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write_table(*(sys.argv[1:] or [commit()]))
