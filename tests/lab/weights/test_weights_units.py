"""The agent under a real systemd, driven over SSH as the control machine drives it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.weights.fleet import wait_until
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab, down
from vllm_cluster.lab.host import Host
from vllm_cluster.weights.build import agent_bytes
from vllm_cluster.weights.fanout import Host as Member
from vllm_cluster.weights.fanout import Model, make_jobs, new_token
from vllm_cluster.weights.sources import HostDirectory, from_host, make_wish

pytestmark = pytest.mark.lab

NAME = lab_name("t-weights")
AGENT, ROOT = "/opt/weights-agent.pyz", "/var/lib/models"
CALL = f"python3 {AGENT} --root {ROOT} --json"
MODEL, REVISION = "lab/model", "r1"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two bare hosts with python3 from their own distribution, and a model's files on the first."""
    made = Lab.up(2, name=NAME)
    try:
        for host in made.hosts:
            must(host, "apt-get -qq update && apt-get -qq install -y python3 >/dev/null")
            argv = host.exec_argv(["sh", "-c", f"cat > {AGENT}"])
            subprocess.run(argv, input=agent_bytes(), check=True)
        must(
            made.host("node-a"),
            "mkdir /srv/m && cd /srv/m && echo '{}' > config.json"
            " && for n in 1 2 3 4; do head -c 16M /dev/urandom > model-$n.safetensors; done",
        )
        yield made
    finally:
        down(NAME)


def must(host: Host, command: str, **more: Any) -> str:
    done = host.ssh(command, timeout_s=300, **more)
    assert done.returncode == 0, f"{host.name}: {command}: {done.stdout}{done.stderr}"
    return done.stdout


def answer(host: Host, command: str, **more: Any) -> dict[str, Any]:
    value = json.loads(must(host, f"{CALL} {command}", **more))
    assert isinstance(value, dict)
    return value


@pytest.fixture(scope="module")
def model(lab: Lab) -> Model:
    """Placed on node-a by a unit of its own that outlives the connection."""
    first = lab.host("node-a")
    wish = make_wish(
        MODEL, REVISION, [from_host(HostDirectory("/srv/m"))], host="node-a", reserve_bytes=0
    )
    state = answer(first, "obtain --wish - --detach", stdin=wish)
    assert state["attached"] is False
    lines = must(first, f"{CALL} follow --key {state['key']}").splitlines()
    last = next(json.loads(line) for line in reversed(lines) if '"identity"' in line)
    assert last["phase"] == "done"
    return Model(MODEL, REVISION, str(last["identity"]))


def unit_of(host: Host, key: str) -> dict[str, str]:
    name = "vllm-cluster-weights-" + key.replace("@", "-")
    lines = must(host, f"systemctl show {name} -p ActiveState,MainPID,NRestarts").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_killed_agent_comes_back_by_itself_goes_on_and_is_attached_to(
    lab: Lab, model: Model
) -> None:
    hosts = [Member(host.name, host.address) for host in lab.hosts]
    jobs = make_jobs(
        model, hosts[:1], hosts[1:], token=new_token(), port=7501,
        options={"reserve_bytes": 0, "limit_mbit": 20, "linger_s": 60},
    )  # fmt: skip
    first, second = lab.host("node-a"), lab.host("node-b")
    answer(first, "serve --job - --detach", stdin=jobs["node-a"])
    started = answer(second, "pull --job - --detach", stdin=jobs["node-b"])
    key = started["key"]

    def have() -> float:
        return float(answer(second, f"status --key {key}")["have_bytes"])

    wait_until(lambda: have() > 4e6, 60, "4 MB on node-b")
    before = unit_of(second, key)
    assert before["ActiveState"] == "active"
    must(second, f"kill -9 {before['MainPID']}")
    wait_until(lambda: unit_of(second, key)["NRestarts"] == "1", 30, "the unit starts again")
    again = answer(second, "pull --job - --detach", stdin=jobs["node-b"])
    assert again["attached"] is True
    must(second, f"{CALL} follow --key {key}")
    state = answer(second, f"status --key {key}")
    assert state["phase"] == "done"
    assert state["kept_bytes"] > 3e6
    assert state["kept_bytes"] + state["fetched_bytes"] == state["total_bytes"]
    sums = "cd {} && sha256sum *.safetensors config.json"
    assert must(first, sums.format("/srv/m")) == must(
        second, sums.format(f"{ROOT}/lab--model/{REVISION}")
    )
    wait_until(lambda: unit_of(first, key)["ActiveState"] == "inactive", 30, "node-a ends too")
    assert "7501" not in must(first, "ss -Htln") + must(second, "ss -Htln")
    assert must(second, f"ls {ROOT}/.jobs").count(".job\n") == 0, "the job holds the token"


def test_a_unit_whose_model_is_not_the_clusters_does_not_start_and_says_why(
    lab: Lab, model: Model
) -> None:
    host = lab.host("node-a")
    check = f"/usr/bin/python3 {AGENT} --root {ROOT} check --model {MODEL} --revision {REVISION}"
    template = "[Service]\nType=oneshot\nExecStartPre={} --identity {}\nExecStart=/bin/true\n"

    def start(identity: str) -> tuple[int, str]:
        unit = template.format(check, identity)
        must(host, "cat > /etc/systemd/system/guarded.service", stdin=unit)
        must(host, "systemctl daemon-reload")
        code = host.ssh("systemctl start guarded").returncode
        return code, host.ssh("systemctl status --no-pager -l guarded").stdout

    assert start(model.identity)[0] == 0
    code, status = start("0" * 64)
    assert code != 0
    assert f"{MODEL} at {REVISION} on this host is {model.identity[:16]}" in status
    must(host, f"truncate -s -1 {ROOT}/lab--model/{REVISION}/model-2.safetensors")
    code, status = start(model.identity)
    assert code != 0
    assert "model-2.safetensors: the size is not the manifest's" in status
