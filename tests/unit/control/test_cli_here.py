"""What fails on this machine is a sentence, not a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_cluster import cli
from vllm_cluster.control import model


def test_a_directory_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(**_words: Any) -> None:
        raise PermissionError(13, "Permission denied", "/nowhere/state")

    monkeypatch.setattr(cli.group, "main", run)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "on this machine: /nowhere/state: Permission denied\n"


def test_a_model_is_read_where_its_manifest_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert model.manifest_of(tmp_path, "m").total_bytes == 2
