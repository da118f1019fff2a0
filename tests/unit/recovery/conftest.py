"""What the host's programs are tested with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load
from vllm_cluster.steps import configs

ROOT = Path(__file__).parents[3]


def program(file: Path, name: str) -> ModuleType:
    """A program of the hosts as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def probe(tmp_path: Path) -> ModuleType:
    """probe.py as it lies on the head of the lab's description."""
    plan = make_plan(load(ROOT / "inventories" / "lab.yaml").description)
    file = tmp_path / "probe.py"
    file.write_text(configs.probe_file(plan, plan.hosts["node-a"]))
    return program(file, "probe_under_test")
