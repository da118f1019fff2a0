"""Reaching a host, and its own state. One fault a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, command, first, ids, sound
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.reach import Silence
from vllm_cluster.facts.doctor.model import (
    Container,
    Disk,
    Docker,
    Mount,
    Owner,
)
from vllm_cluster.facts.doctor.read_network import owners
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan.members import Members

WEIGHTS = "/var/lib/vllm-cluster/models"


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


@pytest.mark.parametrize("known", [True, False])
def test_what_listens_in_a_container_of_ours_that_is_ending_takes_no_port(known: bool) -> None:
    """It answers no exec any more; a moment later Docker knows nothing of it."""
    identity = "9c" * 32
    worker = Container("ray-worker", identity)
    docker = Docker(containers={"ray-worker": worker} if known else {})
    line = f"owner 6380 1400 pid:[1] 0::/system.slice/docker-{identity}.scope raylet"
    assert owners(Sections(f"{MARK} listeners\n{line}\n{MARK} end\n"), docker)[0].ours


def test_what_listens_in_somebody_elses_container_takes_a_port() -> None:
    identity = "9c" * 32
    docker = Docker(containers={"theirs": Container("theirs", identity)})
    line = f"owner 6380 1400 pid:[1] 0::/system.slice/docker-{identity}.scope redis"
    assert not owners(Sections(f"{MARK} listeners\n{line}\n{MARK} end\n"), docker)[0].ours
