"""One fault a test: the first line, its plane, its fix."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import Step
from vllm_cluster.doctor.reach import Silence
from vllm_cluster.facts.doctor.model import (
    Answer,
    Container,
    Disk,
    Docker,
    Mount,
    Owner,
    Peer,
    Unit,
    Verified,
)
from vllm_cluster.facts.doctor.read_host import verified
from vllm_cluster.facts.doctor.script import MARK, VERIFY_TIMER
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan.members import Members
from vllm_cluster.plan.paths import WEIGHTS_VERIFIED

ENV = "/etc/vllm-cluster/cluster.env"
TOKEN = "/etc/vllm-cluster/secrets/ray-token"
WEIGHTS = "/var/lib/vllm-cluster/models"


def command(case: Case) -> str:
    """The first line's first step."""
    return first(case).fix[0].command


def test_a_changed_host_key_is_told_from_a_dead_host() -> None:
    words = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nOffending key in hosts:3"
    case = sound()
    case = replace(
        case, facts={"node-a": case.facts["node-a"]},
        silent={"node-b": Silence("node-b", words, "ssh node-b")}, known_hosts="hosts",
    )  # fmt: skip
    assert first(case).id == "host.key-changed"
    assert command(case) == "ssh-keygen -R 10.77.0.12 -f hosts"


@pytest.mark.parametrize(
    ("words", "identity", "said"),
    [
        ("sudo: a password is required", "host.no-root", "sudo -n"),
        ("ops@10.77.0.12: Permission denied (publickey).", "host.unreachable", "ssh.key"),
        ("Host key verification failed.", "host.unreachable", "host key"),
        ("ssh: Could not resolve hostname node-b: unknown", "host.unreachable", "hosts.node-b.ssh"),
        ("Connection timed out", "host.unreachable", "Switch node-b on"),
    ],
)
def test_what_keeps_doctor_out_is_told_apart(words: str, identity: str, said: str) -> None:
    case = sound()
    silent = {"node-b": Silence("node-b", words, "ssh -p 22 -l ops node-b")}
    case = replace(case, facts={"node-a": case.facts["node-a"]}, silent=silent)
    assert first(case).id == identity
    assert said in command(case)
    assert first(case).evidence == words


def test_a_host_key_at_another_port_stands_in_brackets() -> None:
    words = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @"
    case = sound()
    silent = {"node-b": Silence("node-b", words, "ssh -p 2222 -l ops 10.77.0.12")}
    case = replace(case, facts={"node-a": case.facts["node-a"]}, silent=silent, known_hosts="hosts")
    assert command(case) == "ssh-keygen -R '[10.77.0.12]:2222' -f hosts"


def test_a_host_without_root_is_no_sound_host() -> None:
    case = changed(sound(), "node-b", root=False)
    assert first(case).id == "host.no-root"
    assert first(case).severity == "blind"


@pytest.mark.parametrize(("offset_s", "found"), [(4.0, True), (-4.0, True), (0.4, False)])
def test_a_clock_apart_from_the_others(offset_s: float, *, found: bool) -> None:
    case = changed(sound(), "node-b", clock_offset_s=offset_s)
    assert ("host.clock" in ids(case)) is found


def test_a_port_of_the_plan_held_by_another_process() -> None:
    facts = sound().facts["node-b"]
    owner = Owner(6380, 77, "sshd", ours=False, unit="squatter.service", line="LISTEN 6380")
    case = changed(sound(), "node-b", owners=(*facts.owners, owner))
    assert first(case).id == "host.port-taken"
    assert command(case) == "systemctl disable --now squatter.service"


def test_what_a_run_lets_listen_for_half_a_minute_takes_no_port() -> None:
    owner = Owner(6380, 77, "systemd-socket-", ours=False, line="LISTEN 6380")
    assert "host.port-taken" not in ids(changed(sound(), "node-b", owners=(owner,)))


def test_a_container_that_publishes_the_port_is_stopped_and_not_docker() -> None:
    facts = sound().facts["node-b"]
    web = Container("web", "1", "2", running=True, published=("0.0.0.0:6380",))
    docker = replace(facts.docker, containers={**facts.docker.containers, "web": web})
    owner = Owner(6380, 77, "docker-proxy", ours=False, unit="docker.service")
    case = changed(sound(), "node-b", docker=docker, owners=(owner,))
    taken = next(f for f in findings(case) if f.id == "host.port-taken")
    assert taken.fix[0].command == "docker stop web"


@pytest.mark.parametrize("unit", ["docker.service", "ssh.service", "user@1000.service"])
def test_a_service_without_which_there_is_no_host_is_left_alone(unit: str) -> None:
    owner = Owner(6380, 77, "thing", ours=False, unit=unit)
    assert command(changed(sound(), "node-b", owners=(owner,))) == "kill 77"


def test_ports_that_others_have_reserved_stay_so() -> None:
    system = replace(sound().facts["node-a"].system, ephemeral=(1024, 65000),
                     reserved=((7000, 7000), (30000, 30100)))  # fmt: skip
    case = changed(sound(), "node-a", system=system)
    assert "ip_local_reserved_ports=7000,30000-30100," in command(case)


def test_ports_in_the_ephemeral_range_are_a_warning_unless_reserved() -> None:
    system = replace(sound().facts["node-a"].system, ephemeral=(1024, 65000))
    case = changed(sound(), "node-a", system=system)
    assert first(case).id == "host.ports-ephemeral"
    assert first(case).severity == "warning"
    reserved = replace(system, reserved=((6379, 6388), (6390, 6399), (8000, 8000), (8265, 8265),
                                         (10001, 10001), (20000, 20999)))  # fmt: skip
    assert ids(changed(sound(), "node-a", system=reserved)) == []


def test_a_full_disk_names_the_sessions_that_may_go() -> None:
    ray = "/var/lib/vllm-cluster/ray/sessions"
    disk = Disk(ray, "/var/lib/vllm-cluster", "tmpfs", 2**31, 10**6, 1000, 900)
    usage = (f"500000000\t{ray}/session_2026-01-01_x", f"500000000\t{ray}")
    disks = {**sound().facts["node-b"].disks, ray: disk}
    case = changed(sound(), "node-b", disks=disks, usage=usage)
    assert first(case).id == "host.disk-full"
    assert command(case).startswith(f"cd {ray} && keep=")


def test_a_hung_network_mount_is_the_cause_of_a_model_that_cannot_be_seen() -> None:
    facts = sound().facts["node-b"]
    mounts = (*facts.mounts, Mount(WEIGHTS, "nfs4", "store:/models", frozenset({"rw"})))
    disks = {**facts.disks, WEIGHTS: Disk(WEIGHTS, hung=True)}
    model = replace(facts.model, present=False, hung=True, sizes={})
    case = changed(sound(), "node-b", mounts=mounts, disks=disks, model=model)
    assert first(case).id == "host.mount-hung"
    assert "store:/models" in first(case).found
    assert "model.missing" not in ids(case)


def test_a_read_only_state_disk() -> None:
    facts = sound().facts["node-b"]
    mount = Mount("/", "ext4", "/dev/sda1", frozenset({"ro"}))
    case = changed(sound(), "node-b", mounts=(*facts.mounts, mount))
    assert first(case).id == "host.read-only"
    assert command(case) == "mount -o remount,rw /"
    log = ("1.0 node-b kernel: EXT4-fs error (device sda1): ext4_journal_check_start:83",)
    case = changed(case, "node-b", kernel_log=log)
    assert first(case).fix[0].on == "by hand"
    assert "ext4_journal" in first(case).evidence


def test_an_address_that_no_card_holds() -> None:
    case = changed(sound(), "node-b", addresses={"127.0.0.1": "lo", "192.168.7.7": "eth0"})
    assert first(case).id == "network.address-missing"


def test_a_second_address_in_the_fabric() -> None:
    addresses = {**sound().facts["node-b"].addresses, "10.77.0.77": "eth1"}
    case = changed(sound(), "node-b", addresses=addresses)
    assert first(case).id == "network.second-address"
    assert command(case) == "ip address del 10.77.0.77/24 dev eth1"


def test_an_address_whose_end_would_cut_somebody_off_is_left_to_a_person() -> None:
    facts = sound().facts["node-b"]
    addresses = {"10.77.0.77": "fabric0", **facts.addresses}
    assert first(changed(sound(), "node-b", addresses=addresses)).fix[0].on == "by hand"
    last = {**facts.addresses, "10.77.0.77": "fabric0"}
    assert command(changed(sound(), "node-b", addresses=last)).startswith("ip address del")
    plan = sound().plan
    host = replace(plan.hosts["node-b"], ssh="10.77.0.77")
    case = replace(sound(), plan=replace(plan, hosts={**plan.hosts, "node-b": host}))
    case = changed(case, "node-b", addresses=last)
    assert "SSH comes in by 10.77.0.77" in command(case)


def test_the_smaller_mtu_of_two_is_the_odd_one() -> None:
    facts = sound().facts["node-a"]
    links = {**facts.links, "fabric0": replace(facts.links["fabric0"], mtu=9000)}
    case = changed(sound(), "node-a", links=links)
    assert first(case).id == "network.mtu"
    assert first(case).host == "node-b"
    assert command(case) == "ip link set dev fabric0 mtu 9000"


def test_a_path_that_carries_less_than_the_cards() -> None:
    facts = sound().facts["node-a"]
    peers = {"node-b": replace(facts.peers["node-b"], ping="small", mtu=9000)}
    case = changed(sound(), "node-a", peers=peers)
    assert first(case).id == "network.mtu"
    assert "only small ones arrive" in first(case).found
    assert [(step.on, step.command.split()[-1]) for step in first(case).fix] == [
        ("node-a", "1500"), ("node-b", "1500")
    ]  # fmt: skip
    peers = {"node-b": replace(facts.peers["node-b"], ping="small", mtu=1500)}
    assert first(changed(sound(), "node-a", peers=peers)).fix[0].on == "by hand"


def test_a_rule_that_says_no_route_is_a_rule() -> None:
    peer = sound().facts["node-a"].peers["node-b"]
    ports = {**peer.ports, 47991: "No route to host"}
    case = changed(sound(), "node-a", peers={"node-b": replace(peer, ports=ports)})
    assert first(case).id == "network.port-blocked"


def test_a_link_without_a_cable() -> None:
    facts = sound().facts["node-b"]
    link = replace(facts.links["fabric0"], flags=frozenset({"UP", "NO-CARRIER"}))
    case = changed(sound(), "node-b", links={**facts.links, "fabric0": link})
    assert first(case).id == "network.link-down"


def test_a_name_that_leads_to_loopback() -> None:
    facts = sound().facts["node-b"]
    names = {**facts.names, "node-b": ("127.0.1.1",)}
    case = changed(sound(), "node-b", names=names)
    assert first(case).id == "network.name"
    assert command(case) == case.deploy


def test_a_foreign_line_in_the_hosts_file_is_taken_out_by_its_number() -> None:
    facts = sound().facts["node-a"]
    text = "10.1.1.1 node-b\n" + facts.contents["/etc/hosts"]
    case = changed(
        sound(), "node-a", names={**facts.names, "node-b": ("10.1.1.1",)},
        contents={**facts.contents, "/etc/hosts": text},
    )  # fmt: skip
    assert command(case) == "sed -i '1d' /etc/hosts"


def test_a_foreign_line_keeps_the_other_names_that_it_gives() -> None:
    facts = sound().facts["node-a"]
    text = "10.1.1.1 node-b db node-b # old\n" + facts.contents["/etc/hosts"]
    case = changed(
        sound(), "node-a", names={**facts.names, "node-b": ("10.1.1.1",)},
        contents={**facts.contents, "/etc/hosts": text},
    )  # fmt: skip
    words = shlex.split(command(case))
    done = subprocess.run(["sed", words[2]], input=text, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "10.1.1.1 db # old"


def test_a_peer_that_nothing_reaches() -> None:
    peer = Peer("node-b", "fabric0", ping="none", ports={6380: "dropped", 47991: "dropped"})
    case = changed(sound(), "node-a", peers={"node-b": peer})
    assert first(case).id == "network.peer-unreachable"


def test_docker_that_does_not_answer_because_of_its_configuration() -> None:
    facts = sound().facts["node-b"]
    docker = replace(facts.docker, error="Cannot connect to the Docker daemon")
    contents = {**facts.contents, "/etc/docker/daemon.json": "{,}"}
    case = changed(sound(), "node-b", docker=docker, contents=contents)
    assert first(case).id == "docker.config"
    assert [step.on for step in first(case).fix] == ["node-b", "here"], "with its own data-root"
    assert "ray.worker-down" not in ids(case)


def test_an_option_in_the_file_and_among_dockers_flags() -> None:
    facts = sound().facts["node-b"]
    words = (
        "1.0 node-b dockerd[9]: unable to configure the Docker daemon with file "
        "/etc/docker/daemon.json: the following directives are specified both as a flag and in "
        "the configuration file: hosts: (from flag: [fd://], from file: [tcp://0.0.0.0:2375])"
    )
    unit = replace(facts.unit("docker.service"), active="failed", result="exit-code", log=(words,))
    docker = Docker(error="Cannot connect to the Docker daemon")
    case = changed(sound(), "node-b", docker=docker, units={**facts.units, unit.name: unit})
    found = first(case)
    assert found.id == "docker.config"
    assert found.found == "hosts in both, so Docker does not start"


def test_a_docker_that_is_down_says_so_in_its_own_words() -> None:
    facts = sound().facts["node-b"]
    log = ("1.0 node-b dockerd[9]: failed to start daemon: error initializing graphdriver",)
    unit = replace(facts.unit("docker.service"), active="failed", result="exit-code", log=log)
    docker = Docker(error="Cannot connect to the Docker daemon")
    case = changed(sound(), "node-b", docker=docker, units={**facts.units, unit.name: unit})
    assert first(case).id == "docker.down"
    assert "graphdriver" in first(case).evidence


@pytest.mark.parametrize(("text", "found"), [('{"log-opts": {"max-size": "10m"}}', False),
                                             ("{}", True)])  # fmt: skip
def test_logs_that_grow_without_end(text: str, *, found: bool) -> None:
    facts = sound().facts["node-b"]
    docker = replace(facts.docker, log_driver="json-file")
    contents = {**facts.contents, "/etc/docker/daemon.json": text}
    case = changed(sound(), "node-b", docker=docker, contents=contents)
    assert ids(case) == (["docker.logs-grow"] if found else [])


def test_ray_of_another_version_inside_a_container() -> None:
    facts = sound().facts["node-b"]
    inside = facts.docker.inside["ray-worker"]
    other = replace(inside, packages={**inside.packages, "ray": "2.59.1"})
    docker = replace(facts.docker, inside={"ray-worker": other})
    case = changed(sound(), "node-b", docker=docker)
    assert first(case).id == "ray.version"
    assert first(case).found == "2.59.1"


def test_another_ray_than_described_in_every_container_is_the_descriptions_fault() -> None:
    case = replace(sound(), plan=replace(sound().plan, ray_version="2.59.1"))
    found = first(case)
    assert found.id == "ray.version"
    assert "image.ray: 2.60.0" in found.fix[0].command


def test_python_of_another_patch_level() -> None:
    case = sound()
    for host, name, python in (
        ("node-a", "ray-head", "3.11.2"),
        ("node-b", "ray-worker", "3.11.9"),
    ):
        docker = case.facts[host].docker
        inside = replace(docker.inside[name], python=python)
        case = changed(case, host, docker=replace(docker, inside={**docker.inside, name: inside}))
    found = first(case)
    assert (found.id, found.host, found.found) == ("ray.python", "node-b", "3.11.9")
    assert found.expected == "Python 3.11.2, as on the other hosts"


def test_another_token_on_one_host() -> None:
    case = changed(sound(), "node-b", secrets={TOKEN: "ffff"})
    assert first(case).id == "ray.token"
    assert first(case).host == "node-b"


def test_shared_memory_of_64_megabytes() -> None:
    facts = sound().facts["node-b"]
    inside = replace(facts.docker.inside["ray-worker"], shm_bytes=64 * 2**20)
    case = changed(sound(), "node-b", docker=replace(facts.docker, inside={"ray-worker": inside}))
    assert first(case).id == "memory.shm"
    assert first(case).found == "64 MiB"


def test_limits_below_those_of_the_plan() -> None:
    facts = sound().facts["node-b"]
    inside = replace(facts.docker.inside["ray-worker"], limits={"open files": 1024})
    case = changed(sound(), "node-b", docker=replace(facts.docker, inside={"ray-worker": inside}))
    assert first(case).id == "memory.limits"


def test_a_worker_killed_for_want_of_memory_explains_that_ray_is_down() -> None:
    facts = sound().facts["node-b"]
    log = ("1795971960.5 node-b kernel: Out of memory: Killed process 99 (ray::RayWorkerP)",)
    unit = replace(facts.units["ray-worker.service"], active="activating", sub="auto-restart")
    units = {**facts.units, "ray-worker.service": unit}
    case = changed(sound(), "node-b", kernel_log=log, units=units)
    assert ids(case)[0] == "memory.out"
    assert "ray.worker-down" in ids(case)


@pytest.mark.parametrize(("serves", "severity"), [(True, "warning"), (False, "failing")])
def test_a_kill_is_only_told_while_all_units_run_and_tokens_come(
    *, serves: bool, severity: str
) -> None:
    log = ("4000000000.5 node-b kernel: Out of memory: Killed process 99 (python3)",)
    case = changed(sound(), "node-b", kernel_log=log)
    if not serves:
        case = changed(case, "node-a", api=replace(case.facts["node-a"].api, completion=Answer()))
    found = [f for f in findings(case) if f.id == "memory.out"]
    assert [f.severity for f in found] == [severity]


@pytest.mark.parametrize(
    ("lines", "expected", "found"),
    [
        (("waiting: docker.service is inactive",), "everything", "waiting: docker.service is"),
        (("waiting for 2 GPUs: NVIDIA-SMI has failed",), "everything", "waiting for 2 GPUs: NV"),
        (("waiting for 2 GPUs; Ray shows: 1",), "2 GPUs in Ray", "Ray shows 1"),
        (("waiting for 2 GPUs; Ray shows: 1", "start 3 since vllm.service last held"),
         "everything", "start 3"),
        ((), "everything", "it says nothing yet"),
    ],
)  # fmt: skip
def test_what_vllm_waits_for_is_what_its_log_says(
    lines: tuple[str, ...], expected: str, found: str
) -> None:
    facts = sound().facts["node-a"]
    log = tuple(f"1795971000.{n} node-a script[9]: {line}" for n, line in enumerate(lines))
    unit = replace(facts.units["vllm.service"], active="activating", sub="start-pre",
                   log=("1795970999.1 node-a systemd[1]: Starting vllm.service", *log))  # fmt: skip
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    waiting = next(f for f in findings(case) if f.id == "vllm.waiting")
    assert waiting.expected.startswith(expected)
    assert waiting.found.startswith(found)


def test_a_strange_container_that_ran_out_of_memory_is_not_the_clusters() -> None:
    docker = sound().facts["node-b"].docker
    old = Container("old", "1", "2", status="exited", oom_killed=True)
    docker = replace(docker, containers={**docker.containers, "old": old})
    assert ids(changed(sound(), "node-b", docker=docker)) == []


def test_containers_that_outlive_docker_are_warned_of_before_they_do() -> None:
    facts = sound().facts["node-b"]
    case = changed(sound(), "node-b", docker=replace(facts.docker, live_restore=True))
    found = first(case)
    assert (found.id, found.severity) == ("docker.live-restore", "warning")
    assert "--live-restore out of ExecStart=" in found.fix[0].command
    contents = {**facts.contents, "/etc/docker/daemon.json": '{"live-restore": true}'}
    edit, reload = first(changed(case, "node-b", contents=contents)).fix
    assert edit.command == 'On node-b, "live-restore": false in /etc/docker/daemon.json'
    assert reload.command == "systemctl reload docker.service"


def test_the_wrong_card_for_gloo() -> None:
    facts = sound().facts["node-b"]
    text = facts.contents[ENV].replace("GLOO_SOCKET_IFNAME=fabric0", "GLOO_SOCKET_IFNAME=eth9")
    case = changed(sound(), "node-b", contents={**facts.contents, ENV: text})
    assert first(case).id == "collective.environment-changed"
    assert first(case).found == "GLOO_SOCKET_IFNAME=eth9"


def test_an_engine_that_hangs_behind_a_healthy_answer() -> None:
    facts = sound().facts["node-a"]
    api = replace(facts.api, completion=Answer(words="no answer", timed_out=True))
    case = changed(sound(), "node-a", api=api)
    assert first(case).id == "vllm.hung"


def test_a_busy_engine_is_no_hung_one() -> None:
    facts = sound().facts["node-a"]
    api = replace(facts.api, completion=Answer(words="no answer", timed_out=True),
                  metrics={"vllm:num_requests_waiting": 9.0})  # fmt: skip
    case = changed(sound(), "node-a", api=api)
    assert first(case).id == "vllm.busy"
    assert first(case).severity == "warning"


@pytest.mark.parametrize(("later", "identity"), [(500.0, "vllm.busy"), (100.0, "vllm.hung")])
def test_an_engine_that_works_for_others_is_not_restarted(later: float, identity: str) -> None:
    count = "vllm:generation_tokens_total"
    api = replace(
        sound().facts["node-a"].api, completion=Answer(words="no answer", timed_out=True),
        metrics={"vllm:num_requests_running": 9.0, count: 100.0}, later={count: later},
    )  # fmt: skip
    assert first(changed(sound(), "node-a", api=api)).id == identity


def test_an_api_that_asks_for_no_key() -> None:
    api = replace(sound().facts["node-a"].api, keyless_status=200)
    assert first(changed(sound(), "node-a", api=api)).id == "security.api-open"


def test_a_node_in_ray_that_nobody_planned() -> None:
    ray = sound().facts["node-a"].ray
    stranger = replace(ray.nodes[0], address="10.77.0.99")
    case = changed(sound(), "node-a", ray=replace(ray, nodes=(*ray.nodes, stranger)))
    assert first(case).id == "ray.node-foreign"


def test_fewer_gpus_in_ray_than_planned() -> None:
    ray = sound().facts["node-a"].ray
    nodes = tuple(replace(node, gpus=0) for node in ray.nodes)
    case = changed(sound(), "node-a", ray=replace(ray, nodes=nodes))
    assert first(case).id == "ray.gpus"


def test_a_file_of_the_model_that_was_written_to() -> None:
    facts = sound().facts["node-b"]
    model = replace(facts.model, hashes={"config.json": "f" * 64})
    case = changed(sound(), "node-b", model=model)
    assert first(case).id == "model.corrupt"
    # the bad pieces alone, from the other hosts, and no shard of 5 GB for one byte
    mend = Step("here", f"vllm-cluster weights verify {case.description}")
    assert first(case).fix == (mend,)
    weights = replace(case.plan.weights, storage="nfs")
    case = replace(case, plan=replace(case.plan, weights=weights))
    assert [step.on for step in first(case).fix] == ["by hand", "here"]


def test_the_monthly_reading_that_found_other_bytes_is_told_with_its_words() -> None:
    report: dict[str, Any] = {"ended": 1000.0, "ok": False, "copies": [
        {"key": "a@1", "ok": True, "lines": ["a: whole"]},
        {"key": "b@2", "ok": False, "lines": ["b: model.safetensors: bytes 0 to 1048576"]},
    ]}  # fmt: skip
    said = f"{MARK} file {WEIGHTS_VERIFIED}\n{json.dumps(report)}\n{MARK} end\n"
    found = verified(Sections(said))
    assert found == Verified(1000.0, whole=False, words=(report["copies"][1]["lines"][0],))
    case = changed(sound(), "node-b", verified=found)
    assert first(case).id == "model.rotten"
    assert [step.on for step in first(case).fix] == ["here", "node-b"]
    assert ids(changed(sound(), "node-b", verified=replace(found, whole=True))) == []


def test_a_timer_that_does_not_run_is_a_warning() -> None:
    facts = sound().facts["node-b"]
    timer = Unit(VERIFY_TIMER, load="loaded", active="inactive")
    case = changed(sound(), "node-b", units={**facts.units, timer.name: timer})
    assert (first(case).id, first(case).severity) == ("model.unverified", "warning")


def test_a_unit_that_gave_up_is_started_with_its_counter_reset() -> None:
    facts = sound().facts["node-b"]
    unit = replace(facts.units["ray-worker.service"], active="failed", result="start-limit-hit")
    units = {**facts.units, "ray-worker.service": unit}
    docker = replace(facts.docker, containers={}, inside={})
    case = changed(sound(), "node-b", units=units, docker=docker)
    assert first(case).id == "ray.worker-down"
    assert command(case).startswith("systemctl reset-failed ray-worker.service;")


def test_a_unit_that_pauses_between_starts_begins_anew() -> None:
    facts = sound().facts["node-b"]
    unit = replace(
        facts.unit("ray-worker.service"), active="activating", sub="start-pre",
        log=("1.0 node-b attempt[9]: start 9 since ray-worker last held; pausing 300 s before it",),
    )  # fmt: skip
    case = changed(sound(), "node-b", units={**facts.units, unit.name: unit}, docker=Docker())
    [found] = [one for one in findings(case) if one.id == "ray.worker-down"]
    assert found.fix[0].command.startswith("/usr/local/lib/vllm-cluster/attempt held ray-worker")
    assert found.fix[0].command.endswith("; systemctl restart --no-block ray-worker.service")


@pytest.mark.parametrize(("restarts", "identity"), [(1, "vllm.starting"), (3, "vllm.down")])
def test_a_second_start_is_still_a_start_and_a_fourth_is_a_loop(
    restarts: int, identity: str
) -> None:
    facts = sound().facts["node-a"]
    unit = replace(
        facts.units["vllm.service"], active="activating", sub="start-post", restarts=restarts
    )
    case = changed(sound(), "node-a", units={**facts.units, "vllm.service": unit})
    assert first(case).id == identity


def test_a_host_that_left_the_description_and_was_not_cleaned() -> None:
    hosts = {"node-a": "10.77.0.11", "node-b": "10.77.0.12", "node-c": "10.77.0.13"}
    contents = sound().facts["node-b"].contents
    text = Members("lab", hosts, {"node-d": "10.77.0.14"}).text()
    case = changed(sound(), "node-b", contents={**contents, "/etc/vllm-cluster/members.json": text})
    assert [f.found.split()[0] for f in findings(case) if f.id == "host.left"] == [
        "node-c",
        "node-d",
    ]
    assert first(case).severity == "warning"
    assert command(case).endswith("--host node-c")
