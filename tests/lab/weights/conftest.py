"""Four hosts with a model on the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.weights.fleet import Fleet, make_model
from benchmarks.weights.net import Net
from tests.lab.weights.helpers import HOSTS, QUICK, RATE_MBIT, SHARD_BYTES, SHARDS


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "source"
    make_model(directory, SHARDS, SHARD_BYTES)
    return directory


@pytest.fixture
def fleet(tmp_path: Path, source: Path) -> Iterator[Fleet]:
    with Net("fault", HOSTS, RATE_MBIT) as net:
        made = Fleet(net, tmp_path, **QUICK)
        made.link_mbit = RATE_MBIT
        made.obtain(source)
        yield made
        made.stop_all()
