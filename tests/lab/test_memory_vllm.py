"""Real vLLM on tiny models holds what the plan says: blocks, tokens, weights of every rank.

A part of the matrix; all of it runs under `make test-memory`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab import image
from tests.lab.memory_proof.cases import SUBSET, compare, predict
from tests.lab.memory_proof.run import Case, run_vllm
from tests.lab.memory_proof.tiny import write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for case in SUBSET:
        write_model(folder / case.kind, case.kind)
    return folder


@pytest.fixture(scope="module")
def found(models: Path) -> dict[str, dict[str, Any]]:
    image.build()
    return run_vllm(SUBSET, models)


@pytest.mark.parametrize("case", SUBSET, ids=str)
def test_vllm_holds_what_the_plan_says(
    case: Case, models: Path, found: dict[str, dict[str, Any]]
) -> None:
    numbers = compare(predict(case, models), found[str(case)])
    assert [n for n in numbers if not n.agrees] == []
