"""docs/doctor-faults.md out of the suite's results."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.lab.doctor.suite import RESULTS
from tests.lab.harness import ROOT

DOCUMENT = ROOT / "docs" / "doctor-faults.md"
_HEAD = """# What doctor says of each fault

Written by `make test-doctor`, which puts every fault into a deployed cluster of two lab hosts, one
by one and in pairs. Of each: doctor's first failing line names the cause, its plane is right, and
its fix, applied word for word, leaves a cluster in which doctor finds nothing. Faults marked * were
put into one that serves with real Ray and vLLM; for the others, which lie beneath, a stand-in image
starts in their place, and that Ray and vLLM do not answer is left out of account. The times are of
one busy machine and say little.
"""


def write_table(faults: list[str], pairs: list[tuple[str, str]]) -> None:
    """Write it. Fails where a fault has no result."""
    rows = json.loads(RESULTS.read_text())
    missing = [name for name in [*faults, *("+".join(pair) for pair in pairs)] if name not in rows]
    assert not missing, f"no results of {missing}"
    text = [_HEAD, "| symptom | plane | first line | found | fix | healed in |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    text += [_row(rows[name]) for name in faults]
    text += ["", "## In pairs", "", "| together | doctor's order |", "|---|---|"]
    text += [_pair(rows["+".join(pair)], rows) for pair in pairs]
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text("\n".join(text) + "\n", encoding="utf-8")


def _row(row: dict[str, Any]) -> str:
    symptom = row["symptom"] + (" *" if row["real"] else "")
    cells = [symptom, row["plane"], f"`{row['id']}` on {row['host']}", row["found"],
             "; ".join(f"`{step}`" for step in row["fix"]), f"{row['healed_s']} s"]  # fmt: skip
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _pair(row: dict[str, Any], rows: dict[str, Any]) -> str:
    both = " and ".join(rows[name]["symptom"] for name in row["pair"])
    return f"| {_cell(both)} | {', '.join(f'`{name}`' for name in row['order'])} |"


def _cell(text: str) -> str:
    # Folders of the run are no matter of the reader's.
    text = re.sub(r"\S*/lab\.py\b", "inventories/lab.py", text)
    text = re.sub(r"/\S*/\.lab/[^/\s]+/", ".lab/lab/", text)
    return text.replace("|", "\\|")
