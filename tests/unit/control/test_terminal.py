"""A run that would ask where nobody can answer ends before anything is read or reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from vllm_cluster.control.terminal import unanswered

INVENTORY = """
from pathlib import Path
from vllm_cluster.inventory import groups
head, workers = groups(Path("/nowhere/lab.yaml"))
"""
DEPLOY = {"yes": False, "dry": False, "json_output": False, "operations": ("deploys/start.py",)}


@pytest.mark.parametrize("asks", [True, False])
def test_pyinfra_without_a_terminal_is_refused_in_one_line_where_it_would_ask(
    tmp_path: Path, *, asks: bool
) -> None:
    (tmp_path / "lab.py").write_text(INVENTORY)
    (tmp_path / "deploy.py").touch()
    words = ["lab.py", "deploy.py"] if asks else ["--dry", "lab.py", "deploy.py"]
    done = subprocess.run(
        [Path(sys.executable).with_name("pyinfra"), *words], cwd=tmp_path, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("--> ")]
    no_file = ["/nowhere/lab.yaml: no such file", "1 problem; no host was contacted."]
    refused = "refused: no terminal to ask on; `pyinfra -y ...` deploys without a question"
    if not asks:
        assert lines == no_file
        return
    [line] = lines
    assert line.startswith(refused)


@pytest.mark.parametrize(
    "how",
    [{"yes": True}, {"dry": True}, {"json_output": True}, {"debug_operations": True},
     {"operations": ("fact", "server.Hostname")}, {"operations": ("exec", "uptime")},
     {"operations": ("debug-inventory",)}],
)  # fmt: skip
def test_what_asks_nothing_needs_no_terminal(how: dict[str, Any]) -> None:
    with click.Context(click.Command("pyinfra")) as told:
        told.params = DEPLOY
        assert unanswered().startswith("no terminal to ask on")
        told.params = {**DEPLOY, **how}
        assert unanswered() == ""


def test_a_terminal_can_be_asked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with click.Context(click.Command("pyinfra")) as told:
        told.params = DEPLOY
        assert unanswered() == ""


def test_other_programs_that_read_an_inventory_are_asked_nothing() -> None:
    assert unanswered() == ""
