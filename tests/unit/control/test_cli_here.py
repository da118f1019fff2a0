"""What fails on this machine is a sentence, not a traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster import cli
from vllm_cluster.control import model

FILED = (

    ("doctor",), ("doctor", "network"), ("doctor", "logs"), ("status",), ("support-bundle",),
    ("down", "--yes"), ("fingerprint",), ("plan",), ("lock",), ("rebuild", "--host", "node-b"),
    ("seed", "--host", "node-b"), ("rollback",), ("restart",), ("stop",), ("start",),
    ("weights", "list"), ("weights", "place"), ("rotate",),
)  # fmt: skip


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


@pytest.mark.parametrize("command", ["restart", "stop", "start", "rollback"])
@pytest.mark.parametrize("file", [".", "/", "", "bytes.yaml"])
def test_what_is_no_description_is_deployed_by_no_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    file: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(sys, "argv", ["vllm-cluster", command, file])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    line, after = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file or '.'}: found ")
    assert "; accepted: a " in line
    assert after == "1 problem; no host was contacted."


@pytest.mark.parametrize("words", FILED, ids=" ".join)
@pytest.mark.parametrize(
    ("file", "said"),
    [("u1.py", "an inventory; give the description, u1.yaml"),
     ("u2.py", "an inventory; give the description, a YAML file"),
     ("nosuch.yaml", "no such file")],
)  # fmt: skip
def test_every_command_says_that_an_inventory_or_nothing_is_no_description(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    words: tuple[str, ...],
    file: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "u1.py").touch()
    (tmp_path / "u2.py").touch()
    (tmp_path / "u1.yaml").touch()
    monkeypatch.setattr(sys, "argv", ["vllm-cluster", *words, file])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    line, after = capsys.readouterr().err.splitlines()
    assert line.removeprefix(f"{tmp_path}/") == f"{file}: {said}"
    assert after == "1 problem; no host was contacted."


def test_a_model_is_read_where_its_manifest_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert model.manifest_of(tmp_path, "m").total_bytes == 2
