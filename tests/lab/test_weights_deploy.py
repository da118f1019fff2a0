"""The deploy brings the model: whole, once, from wherever, however it is interrupted."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import with_standin
from tests.lab.harness import Cluster, await_true
from tests.lab.names import lab_name
from tests.lab.weights_deploy import (
    HOSTS,
    PLACE,
    TOTAL_BYTES,
    WEIGHTS,
    command,
    edit,
    job_of,
    kill,
    listening,
    reach,
    revision,
    start,
    start_placing,
    sums,
    sums_on,
    wipe,
    write_model,
)
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]
VERIFY = "vllm-cluster-weights-verify"
UNITS = {"node-a": "vllm", "node-b": "ray-worker"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m", seed=1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Cluster]:
    """Stand-ins brought to the end of deploys/cluster.py with a model of 48 MiB."""
    lab = Lab.up(2, name=lab_name("t-weights-deploy"))
    try:
        made = with_standin(tmp_path_factory.mktemp("inventory"), lab)

        def described(text: dict[str, Any]) -> None:
            text["model"]["source"] = str(model)
            text["weights"] = {"limit_mbit": 40}

        made = edit(made, described)
        made.apply()
        yield made
    finally:
        lab.down()


def path_of(cluster: Cluster) -> str:
    return f"{WEIGHTS}/tiny/{revision(cluster)}"


def everybody_has(cluster: Cluster, model: Path, path: str) -> None:
    for host in HOSTS:
        assert sums_on(cluster, host, path) == sums(model), host


def test_every_host_has_it_whole_and_the_units_that_run_are_its_users(
    cluster: Cluster, model: Path
) -> None:
    path = path_of(cluster)
    everybody_has(cluster, model, path)
    link = cluster.on("node-b", f"readlink {path}").strip()
    assert re.fullmatch(r"\.\./\.store/tiny@[0-9a-f]{16}", link)
    for host, unit in UNITS.items():
        ways_back, *users = cluster.on(host, f"ls {WEIGHTS}/.pins/*").split()
        assert ways_back.startswith("generation-")
        assert users == [f"{unit}.service"]
        check = cluster.on(host, f"systemctl cat {unit}")
        asked = check.split("weights-ready %n")[1].split("\nExecStart")[0]
        assert re.search(r"--identity \\\n\s+[0-9a-f]{64}", asked)
    seen = cluster.on("node-a", f"docker exec vllm cat {path}/config.json")
    assert "StandIn" in seen, "the container sees it through the link"
    await_true("nothing listens", lambda: not any(listening(cluster, h) for h in HOSTS), 90)
    assert cluster.on("node-b", f"systemctl is-active {VERIFY}.timer") == "active\n"


def test_a_run_with_nothing_to_do_asks_each_host_once(cluster: Cluster) -> None:
    assert cluster.planned() == {}
    done = cluster.pyinfra("-y", "-vv", deploy=PLACE)
    assert done.returncode == 0
    said = done.stdout + done.stderr
    for host in HOSTS:
        asked = re.findall(rf"^\[{host}\] >>> .*$", said, re.MULTILINE)
        assert len([line for line in asked if "look" in line]) == 1
        assert len(asked) <= 2, asked
    assert cluster.apply(PLACE)["totals"]["success"] == 0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_pyinfra_killed_on_the_way_is_finished_by_the_next_run(
    cluster: Cluster, model: Path, tmp_path: Path, share: float
) -> None:
    path = path_of(cluster)
    wipe(cluster)
    run = start(cluster, tmp_path / "log")
    reach(cluster, "node-b", share)
    kill(run)
    # The hosts go on by themselves; what is visible at any moment is the whole.
    if cluster.lab.host("node-b").ssh(f"test -e {path}").returncode == 0:
        assert sums_on(cluster, "node-b", path) == sums(model), "half is visible"
    done = cluster.pyinfra("-y", deploy=PLACE)
    assert done.returncode == 0, done.stdout + done.stderr
    everybody_has(cluster, model, path)
    assert job_of(cluster, "node-b", path)["fetched_bytes"] <= 1.02 * TOTAL_BYTES
    assert cluster.planned(PLACE) == {}


def test_pyinfra_killed_while_it_pushes_is_finished_by_the_next_run(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    path = path_of(cluster)
    wipe(cluster)
    run = start(cluster, tmp_path / "log")

    def pushed() -> int:
        done = cluster.on("node-a", f"du -sb {WEIGHTS}/.staging/*.pushed", check=False).split()
        return int(done[0]) if done else 0

    await_true("half is pushed", lambda: pushed() > TOTAL_BYTES // 2, 120)
    kill(run)
    assert cluster.pyinfra("-y", deploy=PLACE).returncode == 0
    everybody_has(cluster, model, path)
    left = cluster.on("node-a", f"ls -A {WEIGHTS}/.staging")
    assert left == "", "what was pushed is moved, not kept beside the copy"


def test_the_same_command_started_twice_is_refused_the_second_time(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    path = path_of(cluster)
    wipe(cluster)
    runs = [start_placing(cluster, tmp_path / f"log{n}") for n in range(2)]
    codes = [run.wait(timeout=600) for run in runs]
    said = [(tmp_path / f"log{n}").read_text() for n in range(2)]
    assert sorted(codes) == [0, 1], said
    assert any("runs vllm-cluster weights place" in text for text in said)
    everybody_has(cluster, model, path)


def test_two_models_at_once_reach_both_hosts(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    second = write_model(tmp_path / "second", seed=2)

    def described(text: dict[str, Any]) -> None:
        text["model"] |= {"source": str(second), "directory": "org/second"}

    other = edit(cluster, described, name="second")
    path = path_of(cluster)
    wipe(cluster)
    run = start_placing(cluster, tmp_path / "log")
    reach(cluster, "node-b", 0.1)
    kill(run)  # its jobs go on
    for made in (other, cluster):
        done = command(made, "place")
        assert done.returncode == 0, done.stdout + done.stderr
    everybody_has(cluster, model, path)
    everybody_has(
        cluster, second, f"{WEIGHTS}/org--second/{revision(cluster, model='org--second')}"
    )
    for host in HOSTS:
        cluster.on(host, f"rm -rf {WEIGHTS}/org--second {WEIGHTS}/.store/org--second*")


# -- a unit and the wrong model -------------------------------------------------------------------


def refused(cluster: Cluster, host: str, reason: str) -> None:
    """The unit does not start, is tried once, and its status says why."""
    unit = UNITS[host]
    cluster.on(host, f"systemctl stop {unit}; systemctl reset-failed {unit}", check=False)
    done = cluster.lab.host(host).ssh(f"systemctl start {unit}")
    assert done.returncode != 0
    shown = cluster.on(host, f"systemctl show {unit} -p ActiveState,NRestarts")
    assert shown.split() == ["NRestarts=0", "ActiveState=failed"] or shown.split() == [
        "ActiveState=failed", "NRestarts=0"]  # fmt: skip
    assert reason in cluster.on(host, f"systemctl status --no-pager {unit}", check=False)
    # RestartSec is 5 s: two of them pass without another start.
    cluster.on(host, "sleep 11")
    assert "ActiveState=failed" in cluster.on(host, f"systemctl show {unit} -p ActiveState")
    assert reason in cluster.on(host, f"systemctl status --no-pager {unit}", check=False)


@pytest.mark.parametrize("host", HOSTS)
def test_a_unit_whose_model_is_another_does_not_start_and_its_status_says_why(
    cluster: Cluster, host: str, tmp_path: Path
) -> None:
    path = path_of(cluster)
    other = write_model(tmp_path / "other", seed=3)

    def described(text: dict[str, Any]) -> None:
        text["model"] |= {"source": str(other)}

    made = edit(cluster, described, name="third")
    assert command(made, "place").returncode == 0
    name = next(n for n in cluster.on(host, f"ls {WEIGHTS}/tiny").split()
                if not path.endswith(n))  # fmt: skip
    wrong = cluster.on(host, f"readlink {WEIGHTS}/tiny/{name}").strip()
    right = cluster.on(host, f"readlink {path}").strip()
    cluster.on(host, f"ln -sfn {wrong} {path}")
    wanted = right.split("@")[1]
    refused(cluster, host, f"on this host is {wrong.split('@')[1]}, the cluster's is {wanted}")

    done = command(cluster, "place")
    assert done.returncode == 0, done.stderr
    assert cluster.on(host, f"readlink {path}").strip() == right
    cluster.on(
        host, f"systemctl reset-failed {UNITS[host]}; systemctl start --no-block {UNITS[host]}"
    )
    for each in HOSTS:
        cluster.on(each, f"cd {WEIGHTS} && rm -rf tiny/{name} .store/{wrong.split('/')[-1]}")


def test_a_damaged_model_keeps_vllm_down_until_verify_has_mended_it(
    cluster: Cluster, model: Path
) -> None:
    path = path_of(cluster)
    cluster.on("node-a", f"truncate -s -1 {path}/model-03.safetensors")
    refused(cluster, "node-a", "model-03.safetensors: the size is not the manifest's")
    done = command(cluster, "verify", "--no-repair", "--json")
    assert done.returncode == 1
    assert set(json.loads(done.stdout)["damaged"]) == {"node-a"}
    done = command(cluster, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    everybody_has(cluster, model, path)
    cluster.apply()
    assert cluster.on("node-a", "systemctl is-active vllm") == "active\n"


def test_a_bit_that_rots_is_found_by_reading_and_that_piece_alone_is_fetched(
    cluster: Cluster, model: Path
) -> None:
    path = path_of(cluster)
    file = f"{path}/model-07.safetensors"
    # As a disk does it: size and times stay, so that no glance sees it.
    cluster.on("node-b", f"""python3 - <<'P'
import os
s = os.stat("{file}"); f = os.open("{file}", os.O_RDWR)
b = os.pread(f, 1, 999999); os.pwrite(f, bytes([b[0] ^ 1]), 999999); os.fsync(f); os.close(f)
os.utime("{file}", ns=(s.st_atime_ns, s.st_mtime_ns))
P""")  # fmt: skip
    done = command(cluster, "verify", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert list(found["damaged"]) == ["node-b"]
    assert "model-07.safetensors: 1 damaged piece" in found["damaged"]["node-b"][0]
    assert found["read_bytes"] >= 2 * TOTAL_BYTES
    assert 0 < job_of(cluster, "node-b", path)["fetched_bytes"] <= 1 << 20
    everybody_has(cluster, model, path)


def test_the_months_reading_reports_to_the_journal_and_a_file(cluster: Cluster) -> None:
    cluster.on("node-b", f"systemctl start {VERIFY}")
    assert ": whole" in cluster.on("node-b", f"journalctl --output=cat --no-pager -u {VERIFY}")
    report = json.loads(cluster.on("node-b", "cat /var/lib/vllm-cluster/weights-verified.json"))
    assert report["ok"]
    assert report["copies"][0]["read_bytes"] >= TOTAL_BYTES


# -- revisions ------------------------------------------------------------------------------------


def test_what_a_unit_uses_is_not_removed_and_what_nobody_uses_is(
    cluster: Cluster, model: Path
) -> None:
    path = path_of(cluster)
    name = path.rsplit("/", 1)[-1]
    done = command(cluster, "remove", name)
    assert done.returncode == 1
    assert "is used by vllm.service; it stays" in done.stderr
    assert "is used by ray-worker.service; it stays" in done.stderr
    everybody_has(cluster, model, path)
    assert command(cluster, "remove", "r-unknown").returncode == 1


def test_a_hubs_cache_of_a_host_is_linked_and_recorded_and_never_becomes_another(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    commit = "c" * 40
    cache = "/srv/hub/models--org--m"
    cluster.lab.host("node-b").ssh(
        f"mkdir -p {cache}/blobs {cache}/snapshots/{commit} {cache}/refs"
    )
    for number, file in enumerate(sorted(model.iterdir())):
        argv = cluster.lab.host("node-b").exec_argv(["sh", "-c", f"cat > {cache}/blobs/{number}"])
        subprocess.run(argv, input=file.read_bytes(), check=True)
        cluster.on("node-b", f"ln -s ../../blobs/{number} {cache}/snapshots/{commit}/{file.name}")

    def described(text: dict[str, Any]) -> None:
        text["model"] = {
            "name": "tiny", "directory": "cached", "revision": commit,
            "sources": [{"here": str(tmp_path / "none")}, {"host": "node-b", "directory": cache}],
        }  # fmt: skip

    made = edit(cluster, described, name="cached")
    done = command(made, "place", "--json")
    assert done.returncode == 0, done.stderr
    path = f"{WEIGHTS}/cached/{commit}"
    everybody_has(cluster, model, path)
    links = cluster.on("node-b", f"stat -L -c %h {path}/model-00.safetensors").strip()
    assert links == "2", "the bytes are there twice"
    lock = made.inventory.with_name("cached.lock.json")
    identity = json.loads(done.stdout)["identity"]
    assert json.loads(lock.read_text())["models"][f"cached@{commit}"]["identity"] == identity

    for host in HOSTS:
        cluster.on(host, f"rm -rf {WEIGHTS}/cached {WEIGHTS}/.store/cached*")
    cluster.on("node-b", f"echo changed >> {cache}/blobs/0")
    done = command(made, "place")
    assert done.returncode == 1
    assert f"not the cluster's {identity[:16]}; it was not placed" in done.stderr
    assert cluster.on("node-b", f"ls {WEIGHTS}/.store").split() == [
        f"tiny@{cluster.on('node-b', f'readlink {path_of(cluster)}').strip().split('@')[1]}"
    ]


def test_a_host_that_is_off_is_named_and_catches_up(cluster: Cluster, model: Path) -> None:
    path = path_of(cluster)
    wipe(cluster)
    cluster.lab.host("node-b").power_off()
    done = command(cluster, "place", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["placed"] == ["node-a"]
    assert "node-b: does not answer" in found["failed"]["node-b"]
    cluster.lab.host("node-b").power_on()
    assert command(cluster, "place").returncode == 0
    everybody_has(cluster, model, path)


def test_too_little_room_is_said_before_the_first_byte(cluster: Cluster) -> None:
    path = path_of(cluster)
    name = path.rsplit("/", 1)[-1]
    for unit in ("vllm", "ray-head"):
        cluster.on("node-a", f"systemctl stop {unit}")
    cluster.on("node-b", "systemctl stop ray-worker")
    wipe(cluster)
    cluster.on("node-b", f"mount -t tmpfs -o size=32M none {WEIGHTS}")
    try:
        done = command(cluster, "place")
        assert done.returncode == 1
        assert re.search(r"node-b: tiny: .* GiB free, needs", done.stderr + done.stdout)
        assert cluster.lab.host("node-b").ssh(f"test -e {WEIGHTS}/tiny/{name}").returncode != 0
    finally:
        cluster.on("node-b", f"umount {WEIGHTS}")
    cluster.apply()
    assert cluster.planned() == {}
