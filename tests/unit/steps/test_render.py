"""Templates, and argument lists as systemd reads them."""

from pathlib import Path

import pytest

from vllm_cluster.plan import Plan, make_plan, paths
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import load
from vllm_cluster.steps import configs
from vllm_cluster.steps.render import exec_line, render

INVENTORIES = Path(__file__).parents[3] / "inventories"


@pytest.fixture
def plan() -> Plan:
    return make_plan(
        load(INVENTORIES / "lab.yaml").description, model_id=ModelId("local-0", "0" * 64, 1)
    )


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--port=6379", "--port=6379"),
        ('--x={"a":1}', '"--x={\\"a\\":1}"'),
        ("50%", '"50%%"'),
        ("$HOME", '"$$HOME"'),
        ("a b", '"a b"'),
        ("a\\b", '"a\\\\b"'),
        ("", '""'),
    ],
)
def test_a_word_reaches_the_program_as_it_is(word: str, written: str) -> None:
    assert exec_line((word,)) == written


def test_a_unit_runs_the_plans_container(plan: Plan) -> None:
    text = configs.unit_file(plan, plan.hosts["node-a"], "vllm", "cafe")
    command = text.split("ExecStart=")[1].split("\nExec")[0].replace("\\\n", " ").split()
    assert command[:2] == ["/usr/bin/docker", "run"]
    assert "--label=vllm-cluster.config=cafe" in command
    assert "--tensor-parallel-size=1" in command
    assert '"--compilation-config={\\"mode\\":2,\\"backend\\":\\"eager\\"}"' in command


@pytest.mark.parametrize(
    ("host", "unit"), [("node-a", "ray-head"), ("node-a", "vllm"), ("node-b", "ray-worker")]
)
def test_systemd_is_the_only_supervisor(plan: Plan, host: str, unit: str) -> None:
    text = configs.unit_file(plan, plan.hosts[host], unit, "cafe")
    assert "\nRestart=always\n" in text
    assert "\nStartLimitBurst=" in text
    assert "ray stop" not in text
    stop = int(text.split("TimeoutStopSec=")[1].split()[0])
    assert stop > int(text.split("docker stop --time ")[1].split()[0])


def test_the_environment_of_a_host_is_its_own(plan: Plan) -> None:
    a = configs.environment_file(plan, plan.hosts["node-a"], "eth0")
    b = configs.environment_file(plan, plan.hosts["node-b"], "eth1")
    assert "VLLM_HOST_IP=10.77.0.11\n" in a
    assert "GLOO_SOCKET_IFNAME=eth0\n" in a
    assert "NCCL_SOCKET_IFNAME==eth0\n" in a
    assert "VLLM_HOST_IP=10.77.0.12\n" in b
    assert "GLOO_SOCKET_IFNAME=eth1\n" in b


def test_a_changed_secret_or_head_changes_the_digest_of_a_worker(plan: Plan) -> None:
    worker = plan.hosts["node-b"]
    same = configs.digest(plan, worker, "ray-worker", "e", {"t": "1"})
    assert configs.digest(plan, worker, "ray-worker", "e", {"t": "1"}) == same
    assert configs.digest(plan, worker, "ray-worker", "e", {"t": "2"}) != same
    assert configs.digest(plan, worker, "ray-worker", "f", {"t": "1"}) != same


def test_the_probe_asks_where_the_plan_listens(plan: Plan) -> None:
    text = render(f"{paths.SCRIPTS}/probe.py", plan=plan, paths=paths, dashboard_port=8265)
    compile(text, "probe.py", "exec")
    assert 'API = "http://127.0.0.1:8000"' in text
