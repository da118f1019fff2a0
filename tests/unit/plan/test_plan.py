"""What follows from the descriptions that people copy."""

import ipaddress
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from vllm_cluster.cli import group
from vllm_cluster.plan import Plan, make_plan
from vllm_cluster.plan.containers import labelled
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import load, loads
from vllm_cluster.spec.checks import EPHEMERAL_FIRST, EPHEMERAL_LAST

INVENTORIES = Path(__file__).parents[3] / "inventories"
ID = "sha256:" + "ab" * 32


@pytest.fixture
def prod() -> Plan:
    return make_plan(
        load(INVENTORIES / "prod.yaml").description, model_id=ModelId("local-0123456789ab")
    )


def options(plan: Plan, host: str, unit: str) -> tuple[str, ...]:
    return plan.hosts[host].containers[unit].run()


def test_the_head_runs_ray_and_vllm_and_a_worker_ray_alone(prod: Plan) -> None:
    assert prod.hosts["node-a"].units == ("ray-head", "vllm")
    assert prod.hosts["node-b"].units == ("ray-worker",)
    assert list(prod.hosts) == ["node-a", "node-b"]


def test_vllm_is_told_to_use_ray(prod: Plan) -> None:
    # It never chooses Ray by itself: vllm/config/parallel.py, ParallelConfig.__post_init__.
    assert "--distributed-executor-backend=ray" in options(prod, "node-a", "vllm")
    assert not any("nnodes" in word for word in options(prod, "node-a", "vllm"))


def test_one_host_needs_no_ray() -> None:
    text = (INVENTORIES / "prod.yaml").read_text()
    text = text.replace("  node-b:\n    address: 192.168.1.11\n    gpus: 4\n", "")
    plan = make_plan(loads(text.replace("pipeline: 2", "pipeline: 1"), Path("x")).description)
    assert plan.backend == "mp"
    assert plan.hosts["node-a"].units == ("vllm",)
    words = options(plan, "node-a", "vllm")
    assert not any(
        "ray" in word for word in words if "image" not in word and "vllm-ray" not in word
    )
    assert "--shm-size=34359738368" in words
    assert [use.name for use in plan.ports] == ["vllm api"]


def test_every_port_of_the_plan_is_the_port_of_a_process(prod: Plan) -> None:
    words = {
        word for host in prod.hosts.values() for c in host.containers.values() for word in c.run()
    } | set(prod.environment.values())
    said = {value for word in words for value in (word, word.rsplit("=", 1)[-1])}
    for use in prod.ports:
        if "while they spread" in use.name:
            continue  # told over SSH, which no container sees
        assert str(use.first) in said, f"no process is told of {use.name} {use.first}"
        assert str(use.last) in said


def test_no_port_is_one_that_the_kernel_hands_out(prod: Plan) -> None:
    for use in prod.ports:
        assert use.last < EPHEMERAL_FIRST or use.first > EPHEMERAL_LAST, use


def test_the_dashboard_listens_on_loopback_alone(prod: Plan) -> None:
    # An open dashboard runs anybody's code: CVE-2023-48022.
    assert "--dashboard-host=127.0.0.1" in options(prod, "node-a", "ray-head")


def test_no_container_pulls_or_restarts_or_publishes(prod: Plan) -> None:
    for host in prod.hosts.values():
        for container in host.containers.values():
            words = container.run()
            assert {"--pull=never", "--restart=no", "--network=host"} <= set(words)
            assert not any(word.startswith(("-p", "--publish")) for word in words)


def test_vllm_shares_processes_memory_and_sockets_with_its_raylet(prod: Plan) -> None:
    words = options(prod, "node-a", "vllm")
    assert {"--pid=container:ray-head", "--ipc=container:ray-head"} <= set(words)
    ray = "--mount=type=bind,source=/var/lib/vllm-cluster/ray,target=/var/lib/vllm-cluster/ray"
    assert ray in words
    assert ray in options(prod, "node-a", "ray-head")
    assert prod.environment["VLLM_RPC_BASE_PATH"].startswith("/var/lib/vllm-cluster/ray/")


def test_the_declared_shm_is_the_containers(prod: Plan) -> None:
    assert "--shm-size=34359738368" in options(prod, "node-a", "ray-head")
    assert "--shm-size=34359738368" in options(prod, "node-b", "ray-worker")


def test_a_stop_takes_longer_than_rays_drain(prod: Plan) -> None:
    assert "--stop-timeout=60" in options(prod, "node-b", "ray-worker")
    assert prod.environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "30"


def test_ray_asks_for_a_token_on_every_process(prod: Plan) -> None:
    assert prod.environment["RAY_AUTH_MODE"] == "token"


def test_workers_get_their_own_address(prod: Plan) -> None:
    assert "--node-ip-address=192.168.1.10" in options(prod, "node-a", "ray-head")
    assert "--node-ip-address=192.168.1.11" in options(prod, "node-b", "ray-worker")
    assert "--address=192.168.1.10:6379" in options(prod, "node-b", "ray-worker")


def test_the_image_is_run_by_its_id_where_it_is_known() -> None:
    plan = make_plan(load(INVENTORIES / "lab.yaml").description, image_id=ID)
    assert ID in options(plan, "node-a", "vllm")
    assert plan.image_pull is None


def test_the_models_path_names_its_content(prod: Plan) -> None:
    path = "/var/lib/vllm-cluster/models/llama-3.3-70b-instruct/local-0123456789ab"
    assert prod.model_path == path
    assert path in options(prod, "node-a", "vllm")


def test_arguments_of_the_user_become_arguments_of_vllm() -> None:
    text = (INVENTORIES / "prod.yaml").read_text()
    extra = (
        "\n    enable-prefix-caching: false\n    trust-remote-code: true\n    lora-modules: [a, b]"
    )
    text = text.replace("    max-model-len: 8192", "    max_model_len: 8192" + extra)
    words = options(make_plan(loads(text, Path("x")).description), "node-a", "vllm")
    assert {"--max-model-len=8192", "--no-enable-prefix-caching", "--trust-remote-code"} <= set(
        words
    )
    assert words[words.index("--lora-modules") + 1 :][:2] == ("a", "b")


def test_a_mapping_becomes_json() -> None:
    plan = make_plan(load(INVENTORIES / "lab.yaml").description)
    wanted = '--compilation-config={"mode":2,"backend":"eager"}'
    assert wanted in options(plan, "node-a", "vllm")


def test_others_reach_ssh_and_the_api_alone(prod: Plan) -> None:
    cluster = {"192.168.1.10", "192.168.1.11"}
    for host in prod.hosts.values():
        open_ports = {
            port for rule in host.allow if set(rule.sources) != cluster for port in rule.ports
        }
        assert open_ports == ({22, 8000} if host.role == "head" else {22})
        for rule in host.allow:
            assert rule.ports or set(rule.sources) == cluster
            assert all(ipaddress.ip_network(source) for source in rule.sources)


def test_a_label_tells_how_a_container_was_started(prod: Plan) -> None:
    words = labelled(prod.hosts["node-a"].containers["vllm"], "cafe").run()
    assert "--label=vllm-cluster.config=cafe" in words
    assert words.index("--label=vllm-cluster.config=cafe") < words.index(prod.image)


def test_the_command_prints_the_plan_without_a_host() -> None:
    done = CliRunner().invoke(group, ["plan", str(INVENTORIES / "prod.yaml"), "--json"])
    assert done.exit_code == 0
    plan = json.loads(done.output)
    assert [rank["host"] for rank in plan["ranks"]] == ["node-a"] * 4 + ["node-b"] * 4
