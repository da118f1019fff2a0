"""Hosts speak the language that is read here, whichever was chosen when they were installed."""

from __future__ import annotations

from pathlib import Path

from vllm_cluster import inventory
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"


def test_every_command_runs_without_a_language() -> None:
    cluster = load(PROD)
    plan = make_plan(cluster.description)
    _, data = inventory._host(cluster, plan.hosts["node-a"], {})
    assert data["_env"] == {"LC_ALL": "C"}
