"""Ubuntu 22.04 and 24.04: recorded answers go in, and what would be sent to the host comes out."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.hosts.recorder import sent
from tests.unit.hosts.test_apt import FINGERPRINT, KEY
from tests.unit.hosts.test_gpu import UBUNTU as DRIVER
from tests.unit.hosts.test_kernel import UBUNTU as KERNEL
from vllm_cluster.steps.docker import docker_step
from vllm_cluster.steps.firewall import firewall_step
from vllm_cluster.steps.gpu import gpu_step
from vllm_cluster.steps.kernel import kernel_step
from vllm_cluster.steps.names import names_step

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
SYSTEMS = {"22.04": "ubuntu 22.04 jammy amd64", "24.04": "ubuntu 24.04 noble amd64"}
MIRROR = {
    "uri": "https://mirror.example.com/x", "suite": "./", "fingerprint": FINGERPRINT,
    "key": "https://mirror.example.com/x/key.asc",
}  # fmt: skip
# What a question of each kind contains, and no other.
APT, GPU, DOCKER, FIREWALL = "/etc/os-release", "mig.mode.current", "podman-docker", "sshd -T"
NAMES, SYSCTL, FETCH = "getent ahostsv4", "/proc/meminfo", "curl --fail"

Sent = Callable[..., list[str]]


@pytest.fixture(params=SYSTEMS)
def ubuntu(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Runs a step against answers of that release; `sections` are merged into prod.yaml."""
    monkeypatch.setattr("vllm_cluster.operations.ssh.run", lambda *_, **__: True)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["StandIn"]}\n')
    (model / "model.safetensors").write_bytes(b"\0" * 64)
    whole: dict[str, Any] = yaml.safe_load(PROD.read_text())
    whole["model"]["source"] = str(model)
    whole["ssh"].pop("key")

    def run(step: Callable[[], None], answers: dict[str, str], **sections: Any) -> list[str]:
        file = tmp_path / f"{step.__name__}{len(list(tmp_path.iterdir()))}.yaml"
        file.write_text(yaml.safe_dump({**whole, **sections}))
        key = base64.b64encode(KEY.encode()).decode()
        known = {FETCH: key, APT: f"system {SYSTEMS[request.param]}", **answers}
        return sent(step, "node-a", {"description": str(file), "answers": known})

    return run


def test_the_drivers_packages_of_ubuntu_are_held_and_the_toolkit_comes_from_the_mirror(
    ubuntu: Sent,
) -> None:
    cards = "".join(
        f"card {n}, NVIDIA A100-SXM4-80GB, GPU-{n}, 81920, Enabled, Disabled, 0\n" for n in range(4)
    )
    driver = [x for x in DRIVER.splitlines() if not x.startswith(("card", "rows"))]
    driver = [x for x in driver if "container-toolkit" not in x]
    four = cards + "\n".join(driver)
    commands = ubuntu(gpu_step, {GPU: four}, toolkit={"source": MIRROR})
    hold = next(x for x in commands if "apt-mark hold" in x)
    assert "libnvidia-compute-570-server" in hold
    assert "linux-modules-nvidia-570-server-generic" in hold
    assert "libnvidia-common-570-server" not in hold  # it is held already
    (source,) = [x for x in commands if "URIs: https://mirror.example.com/x" in x]
    assert "Suites: ./\nSigned-By: /etc/apt/keyrings/vllm-cluster-nvidia-toolkit.asc" in source
    install = next(x for x in commands if "apt install" in x)
    assert "nvidia-container-toolkit=1.19.0-1 nvidia-container-toolkit-base=1.19.0-1" in install
    assert any('"^libnvidia-"' in x for x in commands)


def test_a_driver_that_was_asked_for_comes_after_its_pin(ubuntu: Sent) -> None:
    asked = {"install": True, "branch": "580", "source": MIRROR}
    old = "loaded 570.133.20\nlibrary 570.133.20\npackage hold libnvidia-common-570-server 570.1\n"
    commands = ubuntu(gpu_step, {GPU: old}, driver=asked)
    pin, driver = (x for x in commands if "apt install" in x)
    (unhold,) = (x for x in commands if "apt-mark unhold libnvidia-common-570-server" in x)
    assert commands.index(unhold) < commands.index(driver)
    assert "nvidia-driver-pinning-580" in pin
    assert "nvidia-open" in driver
    assert "although it was asked for" in commands[-1]  # the recorded answer stays the same


@pytest.mark.parametrize(
    ("packages", "engine"),
    [("distribution", "docker.io"), ("docker", "docker-ce docker-ce-cli containerd.io")],
)
def test_docker_is_configured_before_it_is_installed(
    ubuntu: Sent, packages: str, engine: str
) -> None:
    suite = {**MIRROR, "suite": "noble", "components": ["stable"]}
    docker = {"packages": packages, "source": suite}
    cpu = {"gpu": {"kind": "cpu"}}
    commands = ubuntu(docker_step, {DOCKER: ""}, docker=docker, **cpu)
    config = next(n for n, x in enumerate(commands) if '"log-driver": "local"' in x)
    install = next(n for n, x in enumerate(commands) if f" {engine} " in x and "apt install" in x)
    assert config < install
    assert any("Suites: noble\nComponents: stable" in x for x in commands) == (packages == "docker")


def test_the_port_of_ssh_socket_stays_open(ubuntu: Sent) -> None:
    commands = ubuntu(firewall_step, {FIREWALL: "ssh 22\nssh 2222"})
    rules = next(x for x in commands if "firewall-load try nft 45" in x)
    assert "tcp dport { 22, 2222 } accept" in rules


def test_ufw_that_is_active_gets_rules_and_no_table_of_ours(ubuntu: Sent) -> None:
    answer = "ssh 22\nufw active\nufw Default: deny (incoming), allow (outgoing), deny (routed)\n"
    commands = ubuntu(firewall_step, {FIREWALL: answer + "ufw-rule ufw allow 22/tcp"})
    rules = next(x for x in commands if "firewall-load try ufw 45" in x)
    assert "allow from 192.168.1.11 comment" in rules
    assert "allow from 192.168.0.0/16 to any port 8000 proto tcp" in rules
    assert "delete" not in rules
    assert not any("try nft" in x for x in commands)


def test_chrony_stays_and_a_providers_settings_too(ubuntu: Sent) -> None:
    commands = ubuntu(kernel_step, {SYSCTL: KERNEL})
    written = next(x for x in commands if "/etc/sysctl.d/" in x)
    assert "net.ipv4.tcp_rmem = 4096 131072 67108864" in written
    assert "vm.swappiness" not in written
    assert "net.core.somaxconn = 16384" in written  # the larger of ours and theirs
    assert not any("timesyncd" in x for x in commands)


def test_time_servers_for_a_host_that_chrony_serves_are_refused(ubuntu: Sent) -> None:
    (refusal,) = ubuntu(kernel_step, {SYSCTL: KERNEL}, clock={"servers": ["ntp.example.com"]})
    assert "chrony sets this host" in refusal
    assert "leave clock.servers out" in refusal


@pytest.mark.parametrize(
    ("have", "mended"), [(2**30, True), (10**10 - 1, True), (10**10 + 4095, False)]
)
def test_shared_memory_of_a_host_that_somebody_changed_is_mended(
    ubuntu: Sent, have: int, mended: bool
) -> None:
    answer = KERNEL.replace("shm 540550588416", f"shm {have}")
    memory = {"shm": "10GB", "object_store": "2GiB", "ipc": "host"}  # no whole number of pages
    commands = ubuntu(kernel_step, {SYSCTL: answer}, memory=memory)
    resized = [x for x in commands if "&& mount -o remount,size=10000000000 /dev/shm" in x]
    assert bool(resized) == mended


def test_mig_that_stays_on_is_refused(ubuntu: Sent) -> None:
    cards = "".join(
        f"card {n}, NVIDIA A100-SXM4-80GB, GPU-{n}, 81920, Enabled, Enabled, 0\n" for n in range(4)
    )
    driver = "\n".join(x for x in DRIVER.splitlines() if not x.startswith(("card", "rows")))
    commands = ubuntu(gpu_step, {GPU: cards + driver}, driver={"mig": "disable"})
    assert "nvidia-smi --multi-instance-gpu=0" in commands[-2]
    assert "MIG stays on (GPU 0, 1, 2, 3)" in commands[-1]


def test_a_host_that_calls_itself_like_another_is_refused(ubuntu: Sent) -> None:
    hosts = base64.b64encode(b"127.0.0.1 localhost\n127.0.1.1 node-b\n").decode()
    answer = f"hostname node-b\nfqdn node-b\naddress 192.168.1.10\nhosts {hosts}"
    (refusal,) = ubuntu(names_step, {NAMES: answer})
    assert "node-a calls itself node-b" in refusal
    written = ubuntu(names_step, {NAMES: answer}, names={"hostname": "set"})
    assert any("hostnamectl set-hostname node-a" in x for x in written)


def test_cloud_init_is_kept_from_etc_hosts(ubuntu: Sent) -> None:
    hosts = base64.b64encode(b"127.0.0.1 localhost\n127.0.1.1 node-a node-a\n").decode()
    answer = (
        f"hostname node-a\nfqdn node-a\naddress 192.168.1.10\nresolves node-a 127.0.1.1\n"
        f"hosts {hosts}\ncloud /etc/cloud/cloud.cfg.d/90_dpkg.cfg"
    )
    commands = ubuntu(names_step, {NAMES: answer})
    assert any("manage_etc_hosts: false" in x and "zz-vllm-cluster.cfg" in x for x in commands)
    (written,) = [x for x in commands if "127.0.0.1 localhost" in x]
    assert "127.0.1.1" not in written
    assert "192.168.1.11\tnode-b" in written
