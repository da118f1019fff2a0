"""Roles that change: the head moves and comes back, hosts leave and return, Ray goes and comes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from tests.lab.conftest import with_standin
from tests.lab.harness import BIN, ROOT, Cluster
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
NAME = lab_name("t-move")
HOSTS = ("node-a", "node-b", "node-c")
OURS = ("ray-head", "ray-worker", "vllm")
FOREIGN = "[Service]\nExecStart=/bin/sleep infinity\n"


def describe(cluster: Cluster, *names: str, head: str) -> None:
    """Write the description anew: these hosts, one GPU each, a pipeline over them."""
    whole: dict[str, Any] = yaml.safe_load(cluster.description.read_text())
    addresses = {name: f"10.77.0.{11 + at}" for at, name in enumerate(HOSTS)}
    whole["hosts"] = {name: {"address": addresses[name], "gpus": 1} for name in names}
    whole["head"], whole["parallel"] = head, {"tensor": 1, "pipeline": len(names)}
    cluster.description.write_text(yaml.safe_dump(whole, sort_keys=False))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts with node-a as their head. Each test goes on from where the last one ended."""
    lab = Lab.up(3, name=NAME)
    try:
        made = with_standin(tmp_path_factory.mktemp("move"), lab)
        describe(made, *HOSTS, head="node-a")
        made.apply()
        yield made
    finally:
        lab.down()


def units(cluster: Cluster, host: str) -> set[str]:
    """Units of ours that have a file on the host, or are loaded, active or failed there.

    systemd lists for a moment what somebody has only asked for: not-found and inactive.
    """
    names = " ".join(f"{name}.service" for name in OURS)
    script = (
        "cd /etc/systemd/system; ls -d ray-*.service* vllm.service* 2>/dev/null; "
        f"systemctl list-units --all --plain --no-legend {names} | "
        'awk \'$2 != "not-found" || $3 != "inactive" { print $1 }\''
    )
    return {name.removesuffix(".service") for name in cluster.on(host, script).split()}


def containers(cluster: Cluster, host: str) -> set[str]:
    return set(cluster.on(host, "docker ps --format '{{.Names}}'").split())


def secrets(cluster: Cluster, host: str) -> set[str]:
    return set(cluster.on(host, "ls -A /etc/vllm-cluster/secrets").split())


def lets_in(cluster: Cluster, host: str) -> bool:
    """Whether the host's firewall knows the API's port."""
    return "dport 8000 " in cluster.on(host, "nft list table inet vllm_cluster")


def assert_roles(cluster: Cluster, head: str, workers: set[str]) -> None:
    for host in {head, *workers}:
        want = {"ray-head", "vllm"} if host == head else {"ray-worker"}
        assert units(cluster, host) == want, host
        assert containers(cluster, host) == want, host
        assert secrets(cluster, host) == {"ray-token", *(["api-key"] if host == head else [])}
        assert lets_in(cluster, host) == (host == head), host
        said = cluster.on(
            host, f"for u in {' '.join(OURS)}; do systemctl is-enabled $u 2>/dev/null; done; true"
        )
        assert said.split().count("enabled") == len(want), said
        assert cluster.on(host, "systemctl --failed --no-legend --plain") == ""
    address = cluster.lab.host(head).address
    for host in workers:
        dialled = "ss -Htn state established '( dport = :6379 )' | awk '{print $4}'"
        assert cluster.on(host, dialled).split() == [f"{address}:6379"], host


def reached(cluster: Cluster, host: str) -> bool:
    """Whether the host answers on the API's port to whom it should; the stand-in only refuses."""
    url = f"http://{cluster.lab.host(host).address}:8000/health"
    refused = 7
    return cluster.lab.outside("curl", "--silent", "--max-time", "3", url).returncode in {
        0,
        refused,
    }


def at(cluster: Cluster, host: str, unit: str, words: str) -> float:
    """When the journal of a unit last said `words`, in seconds of the machine's one clock."""
    found = cluster.on(host, f"journalctl -u {unit} -o short-unix | grep -F '{words}' | tail -n1")
    return float(found.split()[0])


def test_one_change_and_one_run_move_the_head(cluster: Cluster) -> None:
    assert_roles(cluster, "node-a", {"node-b", "node-c"})
    describe(cluster, *HOSTS, head="node-b")
    cluster.apply()
    assert_roles(cluster, "node-b", {"node-a", "node-c"})
    ended = at(cluster, "node-a", "ray-head", "Stopped")
    assert ended < at(cluster, "node-b", "ray-head", "Started"), "two heads at once"
    assert cluster.planned() == {}


def test_the_way_back_is_the_same(cluster: Cluster) -> None:
    describe(cluster, *HOSTS, head="node-a")
    cluster.apply()
    assert_roles(cluster, "node-a", {"node-b", "node-c"})
    assert cluster.planned() == {}


def test_the_firewall_alone_shuts_nobody_out_of_what_serves(cluster: Cluster) -> None:
    describe(cluster, *HOSTS, head="node-b")
    done = cluster.pyinfra("-y", "--fail-percent", "0", deploy="deploys/firewall.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert reached(cluster, "node-a"), "it serves until cluster.py has moved it"
    assert lets_in(cluster, "node-b"), "it shall serve"
    describe(cluster, *HOSTS, head="node-a")
    cluster.apply()
    assert_roles(cluster, "node-a", {"node-b", "node-c"})
    assert cluster.planned() == {}


def test_a_move_that_is_refused_leaves_the_old_head_in_reach_all_the_while(
    cluster: Cluster,
) -> None:
    assert reached(cluster, "node-a")
    assert not reached(cluster, "node-b")
    describe(cluster, *HOSTS, head="node-b")
    good = cluster.description.read_text()
    # vLLM in the image dislikes it, after all that comes before the switch.
    cluster.description.write_text(good.replace("max-num-seqs: 4", "max-num-seqs: 13"))
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(cluster.pyinfra, "-y", "--fail-percent", "0")
        while not run.done():
            seen.add(reached(cluster, "node-a"))
    done = run.result()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "13 is too few" in done.stdout + done.stderr
    assert seen == {True}
    assert lets_in(cluster, "node-a"), "it goes on serving"
    assert lets_in(cluster, "node-b"), "the run came that far"
    cluster.description.write_text(good)
    describe(cluster, *HOSTS, head="node-a")
    cluster.apply()
    assert_roles(cluster, "node-a", {"node-b", "node-c"})
    assert cluster.planned() == {}


def test_cut_off_in_the_middle_of_a_move_the_next_run_finishes_it(cluster: Cluster) -> None:
    """The unit was stopped and its file is still there; its container outlived its file."""
    describe(cluster, *HOSTS, head="node-b")
    cluster.on("node-a", "systemctl disable --now vllm ray-head")
    cluster.on("node-c", "systemctl stop ray-worker; docker run -d --rm --name ray-head "
               "--label vllm-cluster.config=old --entrypoint sleep "
               "$(docker images -q | head -n1) infinity")  # fmt: skip
    assert "ray-head" in containers(cluster, "node-c")
    cluster.apply()
    assert_roles(cluster, "node-b", {"node-a", "node-c"})


def test_a_unit_of_somebody_else_with_our_name_is_left_alone(cluster: Cluster) -> None:
    path = "/etc/systemd/system/vllm.service"
    cluster.on(
        "node-c", f"printf '{FOREIGN}' > {path}; systemctl daemon-reload; systemctl start vllm"
    )
    try:
        assert cluster.planned() == {}
        cluster.apply()
        assert cluster.on("node-c", "systemctl is-active vllm").strip() == "active"
        assert cluster.on("node-c", f"cat {path}") == FOREIGN
        # Nor does the head move onto it.
        describe(cluster, *HOSTS, head="node-c")
        done = cluster.pyinfra("-y", "--fail-percent", "0")
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"{path} exists and was not written by vllm-cluster" in done.stdout + done.stderr
        assert cluster.on("node-c", "systemctl is-active vllm").strip() == "active"
        assert cluster.on("node-c", f"cat {path}") == FOREIGN
        assert containers(cluster, "node-b") == {"ray-head", "vllm"}
        assert reached(cluster, "node-b")
    finally:
        cluster.on("node-c", f"systemctl stop vllm; rm {path}; systemctl daemon-reload")
    describe(cluster, *HOSTS, head="node-b")
    cluster.apply()
    assert_roles(cluster, "node-b", {"node-a", "node-c"})


def test_one_host_needs_no_ray_and_who_left_is_remembered(cluster: Cluster) -> None:
    describe(cluster, "node-b", head="node-b")
    done = cluster.pyinfra("-y")
    assert done.returncode == 0, done.stdout + done.stderr
    assert units(cluster, "node-b") == {"vllm"}
    assert containers(cluster, "node-b") == {"vllm"}
    assert secrets(cluster, "node-b") == {"api-key"}
    for left in ("node-a", "node-c"):
        assert f"{left} ({cluster.lab.host(left).address}) left the description" in done.stderr
        assert units(cluster, left) == {"ray-worker"}, "no run reaches it any more"
    again = cluster.pyinfra("-y")
    assert "node-a (10.77.0.11) left the description" in again.stderr, "until it was cleaned"


def test_hosts_that_come_back_join_again(cluster: Cluster) -> None:
    describe(cluster, *HOSTS, head="node-b")
    done = cluster.pyinfra("-y")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left the description" not in done.stderr
    assert_roles(cluster, "node-b", {"node-a", "node-c"})
    assert cluster.planned() == {}


def down(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(BIN / "vllm-cluster"), "down", str(cluster.description), *words, "--yes"]
    return subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


GCS_TABLE = "inet vllm_cluster_gcs"
DOOR_CHANGES = {"Firewall | Let in the cluster, SSH and the API, and nobody else": ["node-a"]}


def found_by_doctor(cluster: Cluster) -> set[tuple[str, str]]:
    argv = [str(BIN / "vllm-cluster"), "doctor", str(cluster.description), "--json", "--all"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return {(each["id"], each["host"]) for each in json.loads(done.stdout)["findings"]}


def assert_a_run_puts_the_door_up_again(cluster: Cluster) -> None:
    """Taken away or emptied by hand: doctor and a run see it, and the run changes just that."""
    shown = f"nft -n list table {GCS_TABLE}"
    good = cluster.on("node-a", shown)
    assert "ip saddr 10.77.0.12 accept" in good
    gone = ("security.firewall-gcs", "node-a")
    assert gone not in found_by_doctor(cluster)
    for verb in ("flush", "delete"):
        cluster.on("node-a", f"nft {verb} table {GCS_TABLE}")
        assert gone in found_by_doctor(cluster)
        assert cluster.planned() == DOOR_CHANGES, verb
        cluster.apply()
        assert cluster.on("node-a", shown) == good, verb
        assert cluster.planned() == {}
        assert gone not in found_by_doctor(cluster)
    # A head that does not run has no door, and none is missing there.
    cluster.on("node-a", "systemctl stop ray-head")
    assert "vllm_cluster_gcs" not in cluster.on("node-a", "nft list tables")
    assert gone not in found_by_doctor(cluster)
    assert not set(cluster.planned()) & set(DOOR_CHANGES)
    cluster.apply()
    assert cluster.on("node-a", shown) == good


def assert_no_way_to_the_gcs(cluster: Cluster, left: str) -> None:
    """Not even while the firewall lets it in, as it does until a switch is over."""
    source = cluster.lab.host(left).address
    cluster.on("node-a", f"nft insert rule inet vllm_cluster input ip saddr {source} accept")
    dial = "timeout 5 bash -c 'exec 3<>/dev/tcp/10.77.0.11/6379' 2>&1; true"
    assert "Connection refused" in cluster.on(left, dial)
    assert cluster.on("node-b", dial) == ""
    cluster.on("node-a", "nft delete table inet vllm_cluster_gcs")
    assert cluster.on(left, dial) == "", "nothing else keeps it out"
    # What the firewall's unit does after somebody flushed every table.
    cluster.on("node-a", "/usr/local/lib/vllm-cluster/firewall-load boot")
    cluster.on("node-a", f"nft insert rule inet vllm_cluster input ip saddr {source} accept")
    assert "Connection refused" in cluster.on(left, dial)


def test_a_host_that_left_is_cleaned_by_its_name(cluster: Cluster) -> None:
    describe(cluster, "node-a", "node-b", head="node-a")
    done = cluster.pyinfra("-y")
    assert "node-c (10.77.0.13) left the description" in done.stderr, done.stdout + done.stderr
    # Its container ends with the head's session, and then the unit waits for a head.
    assert units(cluster, "node-c") == {"ray-worker"}
    assert_a_run_puts_the_door_up_again(cluster)
    assert_no_way_to_the_gcs(cluster, "node-c")
    assert down(cluster, "--host", "node-x").returncode == 2
    done = down(cluster, "--host", "node-c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert units(cluster, "node-c") == set()
    assert containers(cluster, "node-c") == set()
    assert cluster.on("node-c", "nft list tables | grep -c vllm; true").strip() == "0"
    assert "BEGIN vllm-cluster" not in cluster.on("node-c", "cat /etc/hosts")
    again = cluster.pyinfra("-y")
    assert "left the description" not in again.stderr
    assert_roles(cluster, "node-a", {"node-b"})


def test_a_standby_takes_over_from_a_dead_head(cluster: Cluster) -> None:
    """node-c was cleaned above; the description of the day after has it in node-a's place."""
    folder = cluster.description.parent
    (folder / "standby.yaml").write_text(cluster.description.read_text())
    (folder / "standby.py").write_text(
        cluster.inventory.read_text().replace("lab.yaml", "standby.yaml")
    )
    standby = Cluster(cluster.lab, folder / "standby.py")
    describe(standby, "node-c", "node-b", head="node-c")
    ready = standby.pyinfra("-y", "--limit", "node-c", deploy="deploys/standby.py")
    assert ready.returncode == 0, ready.stdout + ready.stderr
    assert units(cluster, "node-c") == set()
    assert cluster.on("node-c", "docker images -q | wc -l").strip() == "1"
    assert_roles(cluster, "node-a", {"node-b"})

    cluster.lab.host("node-a").power_cut()
    began = time.monotonic()
    standby.apply()
    took_s = time.monotonic() - began
    print(f"standby: {took_s:.0f} s")
    assert_roles(standby, "node-c", {"node-b"})

    cluster.lab.host("node-a").power_on()
    said = standby.pyinfra("-y")
    assert "node-a (10.77.0.11) left the description" in said.stderr
    assert_roles(standby, "node-c", {"node-b"})
    done = down(standby, "--host", "node-a")
    assert done.returncode == 0, done.stdout + done.stderr
    assert units(cluster, "node-a") == set()
    assert "left the description" not in standby.pyinfra("-y").stderr
