"""docs/refusals.md says what the rules say."""

from pathlib import Path

from scripts.refusals import PAGE, page
from vllm_cluster.plan.refuse import RULES

ROOT = Path(__file__).parents[3]


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make refusals"


def test_every_rule_is_on_the_page_with_its_source() -> None:
    text = (ROOT / "docs/refusals.md").read_text(encoding="utf-8")
    for rule in RULES:
        [line] = [each for each in text.splitlines() if each.startswith(f"| `{rule.id}` |")]
        assert rule.about in line
        assert f"`{rule.file}`" in line
