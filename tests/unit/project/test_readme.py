"""The README says what there is."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_cluster.cli import COMMANDS

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def targets() -> set[str]:
    """Documented targets of the Makefile and of what it includes."""
    files = [ROOT / "Makefile", *(ROOT / "mk").glob("*.mk")]
    text = "\n".join(file.read_text() for file in files)
    return set(re.findall(r"^([a-z][a-z-]*):.*## ", text, re.MULTILINE))


def test_every_target_is_in_the_readme() -> None:
    named = set(re.findall(r"^\| `make ([a-z-]+)", README, re.MULTILINE))
    assert named == targets()


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"`vllm-cluster {command}" in README, command


def test_every_page_and_file_that_it_names_is_there() -> None:
    for path in re.findall(r"`((?:docs|images|inventories|deploys)/[A-Za-z0-9_./-]+)`", README):
        assert (ROOT / path).exists(), path


def test_ci_runs_what_the_readme_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]
    assert "make test " in README
