"""Driver and container toolkit, with stand-ins for NVIDIA's packages in a signed repository."""

from __future__ import annotations

import fcntl
import json
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.bare import Bare, bare, ok
from tests.lab.harness import await_true
from tests.lab.vendor.repository import Repository, build
from vllm_cluster.lab.host import Host

URI = "file:/srv/vendor"
CARD = "NVIDIA H100 80GB HBM3, 81559, 0, No, No\n"
MODULE = "cat /sys/module/nvidia/version"
HOLDS = "apt-mark showhold"
VERSIONS = "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' '*nvidia*' || true"
SET = [
    "libnvidia-common", "libnvidia-compute", "libnvidia-container-tools", "libnvidia-container1",
    "nvidia-container-toolkit", "nvidia-container-toolkit-base", "nvidia-driver-pinning-580",
    "nvidia-open", "nvidia-persistenced", "nvidia-utils",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return build(tmp_path_factory.mktemp("vendor"))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with bare("t-gpu", tmp_path_factory.mktemp("gpu"), hosts=1) as made:
        yield made


@pytest.fixture
def hosts(module: Bare, repository: Repository) -> Bare:
    """A bare host with a card, the vendor's repository on its disk, and nothing of it installed."""
    module.wipe()
    shutil.copytree(repository.folder, module.a.place.root / "srv" / "vendor")
    cards(module.a, CARD)
    describe(module, repository)
    return module


def describe(hosts: Bare, repository: Repository, **driver: object) -> None:
    hosts.edit(
        gpu={"kind": "nvidia", "model": "H100", "memory": "80GiB"},
        driver={"source": repository.source(URI), **driver},
        toolkit={"source": repository.source(URI)},
    )


def cards(host: Host, text: str) -> None:
    folder = host.place.root / "etc" / "standin"
    folder.mkdir(exist_ok=True)
    (folder / "cards").write_text(text)


def installed_by_hand(host: Host, version: str, toolkit: str = "") -> None:
    """The driver, and the toolkit if asked, as somebody installed them, of another source file."""
    line = f"deb [trusted=yes] {URI} ./"
    ok(host, f"echo '{line}' > /tmp/by-hand.list")
    only = "-o Dir::Etc::SourceList=/tmp/by-hand.list -o Dir::Etc::SourceParts=/dev/null"
    names = [f"{name}={version}-1" for name in (
        "nvidia-open", "nvidia-utils", "libnvidia-compute", "libnvidia-common",
        "nvidia-persistenced",
    )]  # fmt: skip
    names += [f"{name}={toolkit}" for name in SET if "container" in name and toolkit]
    words = " ".join(names)
    ok(host, f"apt-get {only} -qq update && apt-get {only} -qq -y install {words}")


def versions(host: Host) -> dict[str, str]:
    rows = (line.split() for line in ok(host, VERSIONS).splitlines())
    return {row[1]: row[2] for row in rows if row[0] == "installed"}


def test_a_driver_that_was_asked_for_comes_in_its_branch_and_stays(
    hosts: Bare, repository: Repository
) -> None:
    describe(hosts, repository, install=True, branch="580")
    hosts.apply("gpu")
    assert ok(hosts.a, MODULE).strip() == "580.105.08"  # not 590.44.01
    assert versions(hosts.a)["nvidia-container-toolkit"] == "1.19.0-1"  # not 1.99.0-1
    assert ok(hosts.a, HOLDS).split() == SET
    assert "0 upgraded" in ok(
        hosts.a, "apt-get -s -o APT::Get::Show-User-Simulation-Note=0 upgrade"
    )
    assert '"^libnvidia-"' in ok(hosts.a, "apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert "Enabled" in ok(hosts.a, "nvidia-smi --query-gpu=persistence_mode")
    assert "libcuda.so.580.105.08" in ok(hosts.a, "cat /var/run/cdi/nvidia.yaml")
    assert hosts.changed("gpu") == []

    hosts.apply("docker")
    runtime = json.loads(ok(hosts.a, "cat /etc/docker/daemon.json"))["runtimes"]["nvidia"]
    assert runtime["path"] == "nvidia-container-runtime"
    files = "bin/true lib/x86_64-linux-gnu/libc.so.6 lib64/ld-linux-x86-64.so.2"
    ok(hosts.a, f"tar -C / --dereference -c {files} | docker import - tiny:1")
    ok(hosts.a, "docker run --rm --runtime=nvidia --network=host tiny:1 /bin/true")
    assert hosts.changed("docker") == []


def test_a_pin_that_does_not_hold_is_found_before_another_branch_is_installed(
    hosts: Bare, repository: Repository
) -> None:
    mine = "Package: nvidia-*\nPin: version 590.*\nPin-Priority: 1001\n"
    hosts.a.ssh("cat > /etc/apt/preferences.d/mine", stdin=mine)
    describe(hosts, repository, install=True, branch="580")
    said = hosts.refused("gpu")
    assert "apt would install nvidia-open 590.44.01-1, not 580.*" in said
    assert "nvidia-open" not in versions(hosts.a)
    assert ok(hosts.a, "cat /etc/apt/preferences.d/mine") == mine


def test_without_being_asked_nothing_is_installed(hosts: Bare) -> None:
    said = hosts.refused("gpu")
    assert "no NVIDIA driver is installed" in said
    assert "driver.install: true" in said
    assert versions(hosts.a) == {}


def test_a_driver_upgraded_under_its_loaded_module_is_refused_until_the_reboot(hosts: Bare) -> None:
    installed_by_hand(hosts.a, "580.95.05")
    installed_by_hand(hosts.a, "580.105.08")
    assert "Driver/library version mismatch" in hosts.a.ssh("nvidia-smi --list-gpus").stdout
    said = hosts.refused("gpu")
    assert "driver 580.95.05 is loaded and 580.105.08 installed" in said
    assert "reboot this host" in said
    assert "nvidia-utils" in ok(hosts.a, HOLDS)
    hosts.a.power_off()
    hosts.a.power_on()
    hosts.apply("gpu")
    assert ok(hosts.a, MODULE).strip() == "580.105.08"
    assert hosts.changed("gpu") == []


def test_a_driver_that_shall_move_is_not_held(hosts: Bare, repository: Repository) -> None:
    installed_by_hand(hosts.a, "580.95.05", "1.19.0-1")
    describe(hosts, repository, hold=False)
    hosts.apply("gpu")
    assert {*ok(hosts.a, HOLDS).split()} == {name for name in SET if "container" in name}
    assert "nvidia" not in ok(hosts.a, "apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert hosts.changed("gpu") == []


def test_nvswitches_get_the_fabric_manager_of_the_loaded_driver(
    hosts: Bare, repository: Repository
) -> None:
    ok(hosts.a, "touch /etc/standin/switches")
    installed_by_hand(hosts.a, "580.95.05", "1.19.0-1")
    said = hosts.refused("gpu")
    assert "fabric manager none on a host with NVSwitch and driver 580.95.05" in said
    ok(hosts.a, "dpkg -i /srv/vendor/nvidia-fabricmanager_580.105.08-1_all.deb")
    said = hosts.refused("gpu")
    assert "fabric manager 580.105.08 on a host with NVSwitch and driver 580.95.05" in said
    describe(hosts, repository, install=True, version="580.95.05")
    hosts.apply("gpu")
    assert versions(hosts.a)["nvidia-fabricmanager"] == "580.95.05-1"
    fabric = "systemctl is-active nvidia-fabricmanager; systemctl is-enabled nvidia-fabricmanager"
    assert ok(hosts.a, fabric).split() == ["active", "enabled"]
    assert "nvidia-fabricmanager" in ok(hosts.a, HOLDS)
    assert hosts.changed("gpu") == []


def test_another_branch_than_described_is_refused(hosts: Bare, repository: Repository) -> None:
    installed_by_hand(hosts.a, "580.95.05")
    describe(hosts, repository, branch="590")
    assert "driver 580.95.05 is installed, not one of branch 590" in hosts.refused("gpu")
    assert versions(hosts.a)["nvidia-open"] == "580.95.05-1"


def test_mig_is_refused_and_switched_off_only_if_asked(hosts: Bare, repository: Repository) -> None:
    installed_by_hand(hosts.a, "580.95.05", "1.19.0-1")
    ok(hosts.a, "touch /etc/standin/mig")
    assert "MIG is on (GPU 0)" in hosts.refused("gpu")
    ok(hosts.a, "test -e /etc/standin/mig")
    describe(hosts, repository, mig="disable")
    hosts.apply("gpu")
    assert ", Disabled," in ok(hosts.a, "nvidia-smi --query-gpu=index,name,uuid,memory.total,x")
    assert hosts.changed("gpu") == []


def test_cards_that_miss_or_are_others_are_refused_and_sick_ones_told(hosts: Bare) -> None:
    installed_by_hand(hosts.a, "580.95.05", "1.19.0-1")
    cards(hosts.a, "")
    assert "nvidia-smi shows 0 GPUs, and 1 are declared" in hosts.refused("gpu")
    cards(hosts.a, "NVIDIA A10, 23028, 0, No, No\n")
    said = hosts.refused("gpu")
    assert "gpu.model is H100" in said
    assert "GPU 0: 23028 MiB" in said
    cards(hosts.a, "NVIDIA H100 80GB HBM3, 81559, 7, Yes, No\n")
    said = hosts.apply("gpu")
    assert "waits to remap a row of its memory" in said
    assert "had 7 uncorrectable memory errors" in said
    assert hosts.changed("gpu") == []


def test_an_older_toolkit_comes_to_the_pinned_version_not_to_the_newest(hosts: Bare) -> None:
    installed_by_hand(hosts.a, "580.95.05", "1.17.8-1")
    ok(hosts.a, "apt-mark hold nvidia-container-toolkit")
    hosts.apply("gpu")
    found = {v for name, v in versions(hosts.a).items() if "container" in name}
    assert found == {"1.19.0-1"}
    assert versions(hosts.a)["nvidia-open"] == "580.95.05-1"
    assert hosts.changed("gpu") == []


def test_a_key_with_another_fingerprint_is_not_trusted(hosts: Bare, repository: Repository) -> None:
    installed_by_hand(hosts.a, "580.95.05")
    hosts.edit(
        gpu={"kind": "nvidia"},
        toolkit={"source": {**repository.source(URI), "fingerprint": "0" * 40}},
    )
    said = hosts.refused("gpu")
    assert repository.fingerprint in said
    assert "0" * 40 in said
    assert ok(hosts.a, "ls /etc/apt/sources.list.d /etc/apt/keyrings").split() == [
        "/etc/apt/keyrings:", "/etc/apt/sources.list.d:"
    ]  # fmt: skip


def test_a_repository_that_the_user_named_already_stays_the_users(hosts: Bare) -> None:
    installed_by_hand(hosts.a, "580.95.05")
    ok(hosts.a, "cp /srv/vendor/key.asc /etc/apt/keyrings/mine.asc")
    mine = f"deb [signed-by=/etc/apt/keyrings/mine.asc] {URI} ./\n"
    hosts.a.ssh("cat > /etc/apt/sources.list.d/mine.list", stdin=mine)
    hosts.apply("gpu")
    assert ok(hosts.a, "ls /etc/apt/sources.list.d").split() == ["mine.list"]
    assert ok(hosts.a, "cat /etc/apt/sources.list.d/mine.list") == mine
    ok(hosts.a, "apt-get -qq update")


@contextmanager
def locked(host: Host, path: str, seconds: float) -> Iterator[None]:
    """Another program of the host holds apt's lock, as at its first boot; then it ends."""
    with (host.place.root / path).open("w") as file:
        fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
        release = threading.Timer(seconds, file.close)
        release.start()
        yield
        release.join()


@pytest.mark.parametrize("lock", ["var/lib/dpkg/lock-frontend", "var/lib/apt/lists/lock"])
def test_a_lock_that_another_apt_holds_is_waited_for(hosts: Bare, lock: str) -> None:
    installed_by_hand(hosts.a, "580.95.05")
    began = time.monotonic()
    with locked(hosts.a, lock, seconds=6):
        held = "apt-get update" if "lists" in lock else "apt-get install -y nvidia-fabricmanager"
        assert "lock" in hosts.a.ssh(held).stderr  # the bad state is one
        hosts.apply("gpu")
    assert time.monotonic() - began >= 6
    assert versions(hosts.a)["nvidia-container-toolkit"] == "1.19.0-1"


def test_what_an_interrupted_dpkg_left_is_finished_first(hosts: Bare) -> None:
    installed_by_hand(hosts.a, "580.95.05")
    deb = "/srv/vendor/nvidia-fabricmanager_580.95.05-1_all.deb"
    ok(hosts.a, f"dpkg --unpack {deb} && touch /var/lib/dpkg/lock-frontend")
    assert "nvidia-fabricmanager" in ok(hosts.a, "dpkg --audit")
    hosts.apply("gpu")
    assert ok(hosts.a, "dpkg --audit") == ""
    assert versions(hosts.a)["nvidia-fabricmanager"] == "580.95.05-1"


# What docker says of a container whose devices a daemon-reload took away.
_DOCKER = """#!/bin/sh
case "$*" in
  *inspect*vllm*) echo true ;;
  *inspect*) exit 1 ;;
  exec*)
    [ -e /run/seen ] || { echo 'Failed to initialize NVML: Unknown Error'; exit 255; } ;;
esac
"""
_UNIT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/touch /run/seen\n"


def test_a_container_that_lost_its_gpus_is_started_anew(hosts: Bare) -> None:
    installed_by_hand(hosts.a, "580.95.05", "1.19.0-1")
    hosts.apply("gpu")
    docker = "/usr/local/bin/docker"
    hosts.a.ssh(f"cat > {docker} && chmod 755 {docker}", stdin=_DOCKER)
    hosts.a.ssh("cat > /etc/systemd/system/vllm.service", stdin=_UNIT)
    changed = hosts.changed("gpu")
    assert changed == ["GPUs in containers | See every container keep its GPUs"]
    await_true("the container", lambda: hosts.a.exec("test", "-e", "/run/seen").returncode == 0, 10)
    assert hosts.changed("gpu") == []
