"""A small model on disk, and a root to place it under."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.weights.agent.layout import Layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three files, one in a directory, one spanning several chunks of 256 KiB, one empty."""
    directory = tmp_path / "source"
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_text('{"a": 1}')
    (directory / "sub" / "empty").touch()
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 3500)
    return directory


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "root")
    made.make()
    return made
