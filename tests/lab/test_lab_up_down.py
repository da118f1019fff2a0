"""up and down: what they make, what they leave alone, what they leave behind, what they refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.names import lab_name
from vllm_cluster.lab import Lab, LabError, down

pytestmark = pytest.mark.lab
NAME = lab_name("t-lab")


def command(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def lab_command(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "vllm_cluster.lab", *argv]
    return subprocess.run(
        program, env={**os.environ, **env}, check=False, capture_output=True, text=True
    )


def left_behind(name: str = NAME) -> list[str]:
    """Mounts, namespaces, processes, loop devices, cgroups and files of a lab, by other tools."""
    folder = f"/.lab/{name}"
    lines = [f"mount {x}" for x in command("findmnt", "-rno", "TARGET").splitlines() if folder in x]
    spaces = command("ip", "netns", "list").split()
    lines += [f"namespace {x}" for x in spaces if x.startswith(f"vc-{name}-")]
    lines += [
        f"process {x}"
        for x in command("ps", "-ewwo", "pid,args").splitlines()
        if folder in x or f"vc-{name}-" in x
    ]
    lines += [f"loop {x}" for x in command("losetup", "-a").splitlines() if folder in x]
    groups = command("find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", f"vc-lab-{name}")
    lines += [f"cgroup {x}" for x in groups.splitlines()]
    paths = [
        Path.cwd() / ".lab" / name,
        Path.cwd() / f".lab/.{name}.lock",
        Path("/run/vllm-cluster-lab") / name,
    ]
    return lines + [f"file {path}" for path in paths if path.exists()]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    down(NAME)


def test_what_left_behind_looks_for_is_there_while_the_lab_is_up() -> None:
    lab = Lab.up(1, name=NAME)
    lab.host("node-a").add_disk(1 << 20)
    kinds = {line.split()[0] for line in left_behind()}
    assert kinds == {"mount", "namespace", "process", "loop", "cgroup", "file"}


def test_down_leaves_nothing() -> None:
    lab = Lab.up(2, name=NAME)
    lab.host("node-a").add_disk(1 << 20)
    lab.host("node-b").power_off()
    client = subprocess.Popen(lab.outside_argv(["sleep", "600"]))
    done = lab_command("down", "--lab", NAME)
    assert done.returncode == 0, done.stderr
    assert f"ending process {client.pid}, still in vc-{NAME}-out" in done.stderr
    assert client.wait(timeout=10) == -signal.SIGTERM
    assert left_behind() == []


def test_down_removes_a_lab_whose_supervisor_and_records_are_gone() -> None:
    lab = Lab.up(1, name=NAME)
    host = lab.host("node-a")
    systemd = host.leader_pid
    assert systemd is not None
    supervisor, nspawn = (
        int(path.read_text().split()[0])
        for path in (host.place.supervisor_pid, host.place.nspawn_pid)
    )
    os.kill(supervisor, signal.SIGKILL)
    os.kill(nspawn, signal.SIGKILL)
    for record in (host.place.supervisor_pid, host.place.nspawn_pid, lab.layout.description):
        record.unlink()
    assert Path(f"/proc/{systemd}").exists()  # a host without anybody who knows of it
    down(NAME)
    assert left_behind() == []


def test_down_of_no_lab_is_no_error() -> None:
    assert lab_command("down", "--lab", NAME).returncode == 0


def test_up_again_changes_nothing() -> None:
    first = Lab.up(2, name=NAME)
    before = first.describe()
    said: list[str] = []
    second = Lab.up(2, name=NAME, say=said.append)
    assert second.describe() == before
    assert json.loads(second.layout.description.read_text()) == before
    assert sum("was on, running" in line for line in said) == 2


def test_up_adds_the_missing_host_and_boots_the_one_that_is_off() -> None:
    lab = Lab.up(2, name=NAME)
    kept = lab.host("node-a").leader_pid
    lab.host("node-b").power_cut()
    lab = Lab.up(3, name=NAME)
    assert lab.host("node-a").leader_pid == kept
    for host in lab.hosts:
        assert host.ssh("hostname").stdout.strip() == host.name
    assert [host.name for host in Lab.up(1, name=NAME).hosts] == ["node-a", "node-b", "node-c"]


def test_up_leaves_the_network_of_the_machine_alone() -> None:
    def network() -> list[str]:
        asked = ["ip -o addr show", "ip -o link show", "ip route show table all", "ip rule"]
        lines = [command(*x.split()) for x in asked]
        # lifetimes count down by themselves
        return [line.partition(" valid_lft")[0] for text in lines for line in text.splitlines()]

    before = network()
    Lab.up(1, name=NAME)
    assert network() == before


def test_up_says_what_it_will_make_before_it_makes_it() -> None:
    said: list[str] = []
    made: list[bool] = []

    def listen(line: str) -> None:
        said.append(line)
        made.append(bool(left_behind()))

    Lab.up(1, name=NAME, say=listen)
    assert f"vc-{NAME}-sw" in said[0]
    assert "overlay mounts" in said[0]
    assert "is not touched" in said[0]
    assert made[0] is False
    assert made[-1] is True


def test_a_host_that_does_not_boot_is_named_with_the_step_and_its_console() -> None:
    lab = Lab.up(1, name=NAME)
    host = lab.host("node-a")
    host.power_off()
    for init in ("usr/lib/systemd/systemd", "usr/sbin/init"):
        (host.place.root / init).unlink()
    with pytest.raises(LabError, match=r"node-a: boot: it is off\nlast lines of .*node-a.console"):
        host.power_on()
    assert left_behind() != []
    down(NAME)
    assert left_behind() == []


def test_a_host_with_a_failed_unit_is_up_and_the_unit_is_named() -> None:
    host = Lab.up(1, name=NAME).host("node-a")
    unit = "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"
    host.ssh("cat > /etc/systemd/system/broken.service", stdin=unit)
    assert host.ssh("systemctl enable broken").returncode == 0
    host.power_off()
    assert host.power_on() == "degraded: broken.service"


def test_a_name_that_another_folder_has_is_refused(tmp_path: Path) -> None:
    Lab.up(1, name=NAME)
    for verb in ("up", "down"):
        done = lab_command(verb, "--lab", NAME, VLLM_CLUSTER_LAB_ROOT=str(tmp_path))
        assert done.returncode == 1
        assert f"lab {NAME} on this machine belongs to" in done.stderr
    assert Lab.load(NAME).host("node-a").is_on


def test_another_release_or_interface_than_the_lab_has_is_refused() -> None:
    Lab.up(1, name=NAME)
    for other in (["--release", "trixie"], ["--interface", "eno1"]):
        done = lab_command("up", "--lab", NAME, *other)
        assert done.returncode == 1
        assert f"lab {NAME} is bookworm with interface fabric0" in done.stderr


def test_a_lab_can_have_the_next_release() -> None:
    host = Lab.up(1, name=NAME, release="trixie").host("node-a")
    assert "VERSION_CODENAME=trixie" in host.ssh("cat /etc/os-release").stdout.splitlines()
    assert host.ssh("systemctl is-system-running").stdout == "running\n"
    installed = host.ssh("apt-get -q update && apt-get -qy install bc && echo 6*7 | bc")
    assert installed.stdout.splitlines()[-1] == "42", installed.stderr


def test_the_interface_can_have_another_name() -> None:
    host = Lab.up(1, name=NAME, interface="enp1s0f0").host("node-a")
    assert "10.77.0.11/24" in host.ssh("ip -br address show dev enp1s0f0").stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["up", "--hosts", "17"], "1<=x<=16"),
        (["up", "--lab", "Lab_1"], "lower-case letters"),
        (["up", "--release", "buster"], "bookworm"),
        (["up", "--interface", "a-name-of-sixteen"], "at most 15 characters"),
        (["power-cut"], "Missing argument"),
        (["link", "node-a", "sideways"], "'up', 'down'"),
        (["frobnicate"], "No such command"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_accepted(argv: list[str], message: str) -> None:
    done = lab_command(*argv)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_lab_the_message_names_up() -> None:
    done = lab_command("status", "--lab", NAME)
    assert done.returncode == 1
    assert done.stderr == f"error: there is no lab '{NAME}'; `up` makes one\n"


@pytest.mark.parametrize("verb", ["up", "down", "status"])
def test_a_user_who_is_not_root_is_refused_before_anything_is_made(verb: str) -> None:
    # a user namespace without a mapping: the same program, as nobody
    argv = ["unshare", "--user", sys.executable, "-m", "vllm_cluster.lab", verb, "--lab", NAME]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "run it as root" in done.stderr
    assert left_behind() == []


@pytest.mark.parametrize("verb", [[], ["up"], ["down"], ["shell"], ["exec"], ["wipe"], ["shape"]])
def test_help_everywhere(verb: list[str]) -> None:
    done = lab_command(*verb, "--help")
    assert done.returncode == 0
    assert "Usage: python -m vllm_cluster.lab" in done.stdout
