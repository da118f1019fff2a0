"""The bytes of public models, against what their publishers say."""

from __future__ import annotations

import json

import pytest

from scripts.memory_table import PAGE, page_with, table
from tests.unit.memory.models import FIXTURES, PUBLIC, public

#: Where the published number counts file headers too, they are at most this share.
HEADER_SHARE = 1e-4


@pytest.mark.parametrize("name", PUBLIC)
def test_the_tensors_add_up_to_what_is_published(name: str) -> None:
    published = json.loads((FIXTURES / name / "published.json").read_text())
    ours, theirs = public(name).stored_bytes, published["published_bytes"]
    if "header" in published["published"]:
        assert theirs * (1 - HEADER_SHARE) < ours < theirs
    else:
        assert ours == theirs


def test_there_are_at_least_ten_from_under_one_to_over_six_hundred_billion() -> None:
    sizes = [public(name).stored_bytes for name in PUBLIC]
    assert len(sizes) >= 10
    assert min(sizes) < 2e9
    assert max(sizes) > 6e11


def test_every_fixture_names_its_source() -> None:
    for name in PUBLIC:
        published = json.loads((FIXTURES / name / "published.json").read_text())
        assert published["source"].startswith("https://huggingface.co/")


def test_the_table_in_the_docs_is_what_the_code_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(table()), (
        "run: python scripts/memory_table.py"
    )
