"""docs/plan-json.md describes what is given out, key by key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.decide.test_decide_layout import answer, hosts
from tests.unit.memory.models import public
from vllm_cluster.plan.decision import Ask
from vllm_cluster.plan.memory.facts import Layout, Serving
from vllm_cluster.plan.whatif import Axes, what_if

PAGE = Path(__file__).resolve().parents[3] / "docs" / "plan-json.md"


def documented() -> dict[str, list[str]]:
    """The keys of every section, in the page's order."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        found[part.splitlines()[0]] = re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE)
    return found


def given() -> dict[str, dict[str, Any]]:
    """One object of every kind, as JSON gives it back."""
    refused = answer("Llama-3.3-70B-Instruct", hosts(2, 4, "A100"), layout=Layout(8))
    decision = json.loads(json.dumps(refused.to_json()))
    (row,) = what_if(public("Qwen3-0.6B"), hosts(1, 1, "L4"), Ask(serving=Serving()), Axes())
    return {
        "decision": decision,
        "layout": decision["layout"],
        "refusal": decision["refusals"][0],
        "candidate": decision["candidates"][0],
        "place": decision["places"][0],
        "traffic": decision["traffic"],
        "fit": decision["fit"],
        "rank": decision["fit"]["ranks"][0],
        "what-if row": json.loads(json.dumps(row.to_json())),
    }


@pytest.mark.parametrize("kind", given())
def test_the_page_names_the_keys_that_are_given(kind: str) -> None:
    assert documented()[kind] == list(given()[kind])


def test_the_page_describes_nothing_else() -> None:
    assert set(documented()) == set(given())


def test_the_page_names_every_refusal() -> None:
    source = Path(__file__).resolve().parents[3] / "vllm_cluster" / "plan"
    code = "".join((source / name).read_text() for name in ("decide.py", "decide_text.py"))
    keys = set(re.findall(r'Refusal\(\s*"([\w-]+)"', code))
    section = PAGE.read_text(encoding="utf-8").split("## refusal")[1].split("## ")[0]
    assert keys == set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", section)) - {"key", "reason", "fix"}
