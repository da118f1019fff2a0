"""The shell that installs packages, beside an apt-get that only says what it was told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from vllm_cluster.operations.packages import SHELL


def test_a_configuration_file_that_somebody_changed_is_kept_unasked(tmp_path: Path) -> None:
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/told\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", f"{SHELL}apt install x"], env=env, check=True)
    told = (tmp_path / "told").read_text()
    assert "-o Dpkg::Options::=--force-confold " in told
    assert told.endswith(" install x\n")


def test_no_service_of_others_is_restarted_after_an_installation_of_ours() -> None:
    said = subprocess.run(
        ["sh", "-c", f"{SHELL}env"], env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "NEEDRESTART_SUSPEND=1\n" in said.stdout
