"""What a unit runs before its container fails with a status that the unit does not forgive."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[3] / "templates"
SCRIPTS = TEMPLATES / "usr/local/lib/vllm-cluster"
UNITS = TEMPLATES / "etc/systemd/system"
SMI = "echo 'GPU 0: NVIDIA H100'"


def run(folder: Path, words: list[str], **commands: str) -> subprocess.CompletedProcess[str]:
    """A script with these commands before all others on its path."""
    for name, body in commands.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", SCRIPTS / words[0], *words[1:]], env=environment, capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip


def forgiven() -> set[int]:
    """Statuses that a unit of ours takes for a success; systemd asks it of ExecStartPre= too."""
    found: set[int] = set()
    for unit in UNITS.glob("*.service.j2"):
        for line in re.findall(r"^SuccessExitStatus=(.*)$", unit.read_text(), re.MULTILINE):
            found |= {int(word) for word in line.split() if word.isdigit()}
    assert found
    return found


@pytest.mark.parametrize("status", [1, 4])
def test_another_model_than_the_plans_is_a_failure_to_every_unit(
    tmp_path: Path, status: int
) -> None:
    asked = tmp_path / "asked"
    check = ["sh", "-c", f"echo 'no such copy' >&2; exit {status}"]
    done = run(
        tmp_path, ["weights-ready", "x.service", *check],
        systemctl=f'echo "$@" > {asked}',
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}
    assert "is not the plan's: no such copy" in done.stderr
    assert asked.read_text() == "--no-block stop x.service\n"
    assert run(tmp_path, ["weights-ready", "x.service", "true"]).returncode == 0


@pytest.mark.parametrize("end", ["exit 5", "exit 2", "kill -9 $$"])
def test_a_model_that_nobody_could_look_at_is_a_failure_and_no_stop(
    tmp_path: Path, end: str
) -> None:
    asked = tmp_path / "asked"
    check = ["sh", "-c", f"echo 'Stale file handle' >&2; {end}"]
    done = run(
        tmp_path, ["weights-ready", "x.service", *check],
        systemctl=f'echo "$@" > {asked}',
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}
    assert "could not be looked at" in done.stderr
    assert "Stale file handle" in done.stderr
    assert "is not the plan's" not in done.stderr
    assert not asked.exists()


@pytest.mark.parametrize("smi", ["echo 'No devices were found'; exit 6", SMI])
def test_gpus_that_containers_cannot_have_are_a_failure_to_every_unit(
    tmp_path: Path, smi: str
) -> None:
    done = run(
        tmp_path, ["gpus-ready", "1", "0"], nvidia_smi=smi, nvidia_modprobe="exit 0",
        nvidia_ctk="echo 'no driver' >&2; exit 1",
    )  # fmt: skip
    assert done.returncode not in {0, *forgiven()}
