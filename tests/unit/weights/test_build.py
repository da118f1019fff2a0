"""The agent runs on a host that has python3 3.10 and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_cluster.weights
from vllm_cluster.weights.build import agent_bytes, agent_version

PACKAGE = Path(vllm_cluster.weights.__file__).parent
MODULES = [PACKAGE / "manifest.py", *sorted((PACKAGE / "agent").glob("*.py"))]


def test_the_same_bytes_every_time() -> None:
    assert agent_bytes() == agent_bytes()
    assert len(agent_version()) == 64


def test_it_starts_without_site_packages(tmp_path: Path) -> None:
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(agent_bytes())
    done = subprocess.run(
        [sys.executable, "-I", "-S", agent, "--root", tmp_path, "--json", "list"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, '{"copies": [], "lines": []}\n'), done.stderr


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_is_python_3_10_and_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    foreign = {
        name
        for name in imported
        if name.split(".")[0] not in sys.stdlib_module_names
        and name != "vllm_cluster.weights.manifest"
        and not name.startswith("vllm_cluster.weights.agent")
    }
    assert foreign <= ({"huggingface_hub"} if path.name == "hub.py" else set())
