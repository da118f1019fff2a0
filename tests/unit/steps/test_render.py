"""Templates, and argument lists as systemd reads them."""

import subprocess
from pathlib import Path

import pytest

from vllm_cluster.plan import Plan, make_plan, paths, signs
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import load
from vllm_cluster.steps import configs
from vllm_cluster.steps.render import exec_line

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
    asked = next(
        line
        for line in text.splitlines()
        if line.startswith("ExecStop=") and "end-container" in line
    )
    assert stop > int(asked.split()[-1])


@pytest.mark.parametrize(
    ("host", "unit"), [("node-a", "ray-head"), ("node-a", "vllm"), ("node-b", "ray-worker")]
)
def test_a_unit_gives_up_after_starts_and_not_by_time(plan: Plan, host: str, unit: str) -> None:
    text = configs.unit_file(plan, plan.hosts[host], unit, "cafe")
    assert "\nStartLimitIntervalSec=0\nStartLimitBurst=10\n" in text
    assert "\nTimeoutStartSec=infinity\n" in text
    assert text.count("\nSyslogIdentifier=%N\n") == 1, "whatever program speaks"
    # What is waited for comes before what fails without it.
    before = [line for line in text.splitlines() if line.startswith("ExecStartPre=")]
    order = [line.split(" %n ")[-1].split()[0].rsplit("/", 1)[1] for line in before[:3]]
    assert order == ["attempt", "host-ready", "end-container"]
    # All that may wait: systemd goes on to it after a stop.
    for line in before[1:]:
        if not line.startswith("ExecStartPre=-") or "attempt " in line:
            assert "/unless-stopped %n " in line


def test_the_script_that_vllm_starts_with_is_part_of_its_digest(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = plan.hosts["node-a"]
    before = {unit: configs.digest(plan, head, unit, "e", {}) for unit in head.units}
    monkeypatch.setattr(configs, "plain", lambda path: f"another {path}")
    after = {unit: configs.digest(plan, head, unit, "e", {}) for unit in head.units}
    assert after["vllm"] != before["vllm"]
    assert after["ray-head"] == before["ray-head"]


def test_the_noted_digest_is_that_of_the_files(plan: Plan, tmp_path: Path) -> None:
    text, env = configs.unit_file(plan, plan.hosts["node-a"], "vllm", "cafe"), "A=1\n"
    unit, file = tmp_path / "unit", tmp_path / "env"
    unit.write_text(text)
    file.write_text(env)
    shell = f"cat -- {unit} {file} | sha256sum | cut -c1-64"
    noted = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert noted.stdout.strip() == configs.started_digest(text, env)


def test_every_sign_is_a_pattern_for_grep_too() -> None:
    for sign in signs.SIGNS:
        done = subprocess.run(
            ["grep", "-P", "-m1", "--", sign.pattern], input="", capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, ""), sign.pattern


def test_caches_of_compiled_code_lie_on_the_host(plan: Plan) -> None:
    """vLLM puts its own caches, and with them inductor's, below VLLM_CACHE_ROOT
    (vllm/compilation/backends.py, model_executor/warmup/flashinfer_autotune_cache.py); Triton,
    inductor, FlashInfer and the driver have variables of their own."""
    names = (
        "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH",
    )  # fmt: skip
    for host, unit in (("node-a", "ray-head"), ("node-a", "vllm"), ("node-b", "ray-worker")):
        run = plan.hosts[host].containers[unit].run()
        mount = f"--mount=type=bind,source={paths.COMPILE_CACHE},target={paths.COMPILE_CACHE}"
        assert mount in run
        assert f"--env-file={paths.ENVIRONMENT}" in run
    for name in names:
        assert plan.environment[name].startswith(f"{paths.COMPILE_CACHE}/"), name


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
    text = configs.probe_file(plan, plan.hosts["node-b"])
    compile(text, "probe.py", "exec")
    assert 'API = "http://127.0.0.1:8000"' in text
    assert "http://127.0.0.1:8265/api/v0/nodes" in text
    assert "http://10.77.0.12:6383/api/local_raylet_healthz" in text


def door(plan: Plan) -> list[str]:
    """Port and sources that the head's unit lets in to Ray's GCS."""
    text = configs.unit_file(plan, plan.hosts[plan.head], "ray-head", "cafe")
    lines = [line for line in text.splitlines() if "/door only " in line]
    assert len(lines) == 1
    return lines[0].split("/door only ")[1].split()


def changed(tmp_path: Path, *edits: tuple[str, str]) -> Plan:
    """The plan of the lab's description with these edits."""
    text = (INVENTORIES / "lab.yaml").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "lab.yaml"
    file.write_text(text)
    return make_plan(load(file).description, model_id=ModelId("local-0", "0" * 64, 1))


def test_only_hosts_of_the_plan_reach_the_heads_gcs(plan: Plan) -> None:
    assert door(plan) == ["6379", "10.77.0.11", "10.77.0.12"]


def test_whom_the_description_lets_in_to_the_gcs_comes_through_its_door_too(
    tmp_path: Path,
) -> None:
    opened = "  open:\n    clients: {ports: [6379], sources: [10.9.9.9/32]}\n"
    opened += "    others: {ports: [6380], sources: [10.9.9.8/32]}\n"
    plan = changed(tmp_path, ("network:\n", f"network:\n{opened}"))
    assert door(plan) == ["6379", "10.77.0.11", "10.77.0.12", "10.9.9.9/32"]


def test_a_unit_that_changes_makes_another_generation(tmp_path: Path, plan: Plan) -> None:
    """It goes the way that is judged and can go back, though the container is the same."""
    other = changed(tmp_path, ("start_timeout_s: 600", "start_timeout_s: 601"))
    for name, host in plan.hosts.items():
        for unit, container in host.containers.items():
            assert other.hosts[name].containers[unit].run() == container.run()
    assert configs.generation(other, {}) != configs.generation(plan, {})
