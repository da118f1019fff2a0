"""Names, cards, ways, kernel, shared memory and clocks of hosts that are not as they should be."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.lab.bare import Bare, bare, ok
from vllm_cluster.facts import network
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

CLOUD = "/etc/cloud/cloud.cfg.d/zz-vllm-cluster.cfg"
_DIAL = ("bash", "-c", "exec 3<>/dev/tcp/$0")
NAMES = "getent ahostsv4 node-a node-b | awk '$2 == \"STREAM\" {print $1}'"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with bare("t-system", tmp_path_factory.mktemp("system")) as made:
        yield made


@pytest.fixture
def hosts(module: Bare) -> Bare:
    module.wipe()
    module.edit()
    return module


def test_the_own_name_leaves_loopback_and_everything_else_stays(hosts: Bare) -> None:
    mine = "10.9.9.9\tprinter # third floor\n"
    hosts.a.ssh("cat >> /etc/hosts", stdin=mine)
    before = ok(hosts.a, "cat /etc/hosts")
    assert "127.0.1.1" in ok(hosts.a, NAMES)  # the bad state
    hosts.apply("names")
    for host in hosts.lab.hosts:
        assert ok(host, NAMES).split() == ["10.77.0.11", "10.77.0.12"]
    after = ok(hosts.a, "cat /etc/hosts")
    kept = [line for line in before.splitlines() if "127.0.1.1" not in line]
    assert after.splitlines()[: len(kept)] == kept
    assert ok(hosts.a, "hostname; hostname -f").split() == ["node-a", "node-a"]
    ok(hosts.a, "sed -i 's/^10.77.0.12.*/10.77.0.99 node-b/' /etc/hosts")  # drift
    hosts.apply("names")
    assert ok(hosts.a, "cat /etc/hosts") == after
    assert hosts.changed("names") == []


def test_a_host_keeps_its_own_name_unless_another_was_asked_for(hosts: Bare) -> None:
    ok(
        hosts.a,
        "hostnamectl set-hostname gpu17; sed -i 's/127.0.1.1.*/127.0.1.1 gpu17/' /etc/hosts",
    )
    hosts.apply("names", "node-a")
    assert ok(hosts.a, "hostname").strip() == "gpu17"
    for name in ("gpu17", "node-a"):
        assert ok(hosts.a, f"getent ahostsv4 {name}").split()[0] == "10.77.0.11"
    assert hosts.changed("names", "node-a") == []
    hosts.edit(names={"hostname": "set"})
    hosts.apply("names", "node-a")
    assert ok(hosts.a, "hostname; cat /etc/hostname").split() == ["node-a", "node-a"]
    assert hosts.changed("names", "node-a") == []


def test_cloud_init_is_kept_from_etc_hosts(hosts: Bare) -> None:
    ok(hosts.a, "mkdir -p /etc/cloud/cloud.cfg.d && echo 'manage_etc_hosts: true' > "
       "/etc/cloud/cloud.cfg.d/99_provider.cfg")  # fmt: skip
    said = hosts.apply("names", "node-a")
    assert "cloud-init writes /etc/hosts at every boot" in said
    assert "manage_etc_hosts: false" in ok(hosts.a, f"cat {CLOUD}")
    last = ok(hosts.a, "ls /etc/cloud/cloud.cfg.d | LC_ALL=C sort | tail -n1")
    assert last.strip() == "zz-vllm-cluster.cfg"  # cloud-init lets the last file count
    assert hosts.changed("names", "node-a") == []
    # The user data of an instance outranks every file: nothing that a host can write helps.
    ok(hosts.a, "mkdir -p /var/lib/cloud/instance && echo 'manage_etc_hosts: localhost' > "
       "/var/lib/cloud/instance/cloud-config.txt")  # fmt: skip
    before = ok(hosts.a, "cat /etc/hosts")
    assert "take manage_etc_hosts out of the instance's user data" in hosts.refused(
        "names", "node-a"
    )
    assert ok(hosts.a, "cat /etc/hosts") == before


_PROVIDER = """datasource_list: [None]
network: {config: disabled}
cloud_init_modules: [update_etc_hosts]
cloud_config_modules: []
cloud_final_modules: []
manage_etc_hosts: true
"""
_AS_AT_BOOT = "rm -rf /var/lib/cloud; { cloud-init init --local; cloud-init init; } >/dev/null 2>&1"


def test_cloud_init_itself_writes_the_file_no_more(hosts: Bare) -> None:
    hosts.install("cloud-init", only=hosts.a)
    hosts.a.ssh("cat > /etc/cloud/cloud.cfg.d/99_provider.cfg", stdin=_PROVIDER)
    ok(hosts.a, f"echo '10.9.9.9 printer' >> /etc/hosts; {_AS_AT_BOOT}")
    written = ok(hosts.a, "cat /etc/hosts")
    assert "configured 'manage_etc_hosts' as True" in written  # the bad state: it takes lines away
    assert "printer" not in written
    ok(hosts.a, "echo '10.9.9.9 printer' >> /etc/hosts")
    hosts.apply("names", "node-a")
    after = ok(hosts.a, "cat /etc/hosts")
    ok(hosts.a, _AS_AT_BOOT)
    assert ok(hosts.a, "cat /etc/hosts") == after
    assert "10.9.9.9 printer" in after
    assert ok(hosts.a, NAMES).split() == ["10.77.0.11", "10.77.0.12"]
    assert hosts.changed("names", "node-a") == []


def test_a_hosts_file_that_contradicts_the_description_is_refused(hosts: Bare) -> None:
    ok(hosts.a, "echo '10.77.0.99 node-b' >> /etc/hosts")
    before = ok(hosts.a, "cat /etc/hosts")
    said = hosts.refused("names", "node-a")
    assert "says that node-b is 10.77.0.99" in said
    assert ok(hosts.a, "cat /etc/hosts") == before


def test_two_cards_in_the_fabrics_network_are_refused(hosts: Bare) -> None:
    ok(hosts.a, "ip link add second type veth peer name other && ip link set second up && "
       "ip address add 10.77.0.99/24 dev second")  # fmt: skip
    assert "fabric0 and second are both in 10.77.0.0/24" in hosts.refused("network", "node-a")


def test_a_larger_mtu_on_one_card_is_refused_before_anything_hangs(hosts: Bare) -> None:
    hosts.apply("network")
    ok(hosts.a, "ip link set fabric0 mtu 9000")
    said = hosts.refused("network")
    assert "packets of 9000 bytes, the MTU here, do not reach node-b" in said
    assert "1500 bytes do" in said


def test_rules_of_the_user_that_block_the_cluster_are_refused(hosts: Bare) -> None:
    rules = (
        "table inet mine {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n"
        "\t\tct state established,related accept\n\t\ttcp dport { 22, 6379-20999 } accept\n"
        "\t\tmeta l4proto 1 accept\n\t}\n}\n"
    )
    hosts.b.ssh("nft -f -", stdin=rules)
    hosts.apply("firewall")
    said = hosts.refused("network")
    assert "node-b (10.77.0.12) lets some ports in and not 60999" in said
    assert "policy drop" in ok(hosts.b, "nft list table inet mine")
    # A reset looks like a port where nobody listens.
    hosts.b.ssh("nft -f -", stdin="flush table inet mine\n" + rules.replace(
        "\t\tmeta l4proto 1 accept\n", "\t\tmeta l4proto 1 accept\n\t\treject with tcp reset\n"
    ))  # fmt: skip
    assert hosts.a.exec(*_DIAL, "10.77.0.12/60999").returncode == 1
    said = hosts.refused("network")
    assert "node-b (10.77.0.12) lets some ports in and not 60999" in said
    assert "reject with tcp reset" in ok(hosts.b, "nft list table inet mine")
    ok(hosts.b, "nft insert rule inet mine input ip saddr 10.77.0.0/24 accept")
    hosts.apply("network")
    assert hosts.changed("network") == []


def test_a_listener_of_an_earlier_run_is_not_taken_for_one_of_this(
    hosts: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "LISTEN_S", 6)
    listen = network.Listening().command(ports=[60999], address="10.77.0.11").get_raw_value()
    first = "ss -Hltnp src 10.77.0.11:60999 | sed -E 's/.*pid=([0-9]+).*/\\1/'"
    ok(hosts.a, listen)
    old = ok(hosts.a, first).strip()
    began = time.monotonic()
    ok(hosts.a, listen)
    dial = (*_DIAL, "10.77.0.11/60999")
    assert hosts.b.exec(*dial).returncode == 0
    ok(hosts.a, f"timeout 20 bash -c 'while [ -d /proc/{old} ]; do sleep 0.1; done'")
    assert time.monotonic() - began < 6, "too late to tell"
    assert hosts.b.exec(*dial).returncode == 0


def test_settings_of_others_are_met_not_overwritten(hosts: Bare) -> None:
    mine = "net.ipv4.ip_local_reserved_ports = 8001\nnet.ipv4.tcp_rmem = 8192 262144 134217728\n"
    hosts.a.ssh("cat > /etc/sysctl.d/50-mine.conf && sysctl -q -p /etc/sysctl.d/50-mine.conf",
                stdin=mine)  # fmt: skip
    hosts.edit(clock={"service": "auto"})
    hosts.apply("kernel")
    assert "systemd-timesyncd" in ok(hosts.a, "dpkg-query -W systemd-timesyncd")
    values = "cat /proc/sys/net/ipv4/ip_local_reserved_ports /proc/sys/net/ipv4/tcp_rmem"
    wanted = ["6379-6388,6390-6399,8000-8001,8265,10001,20000-20999", "8192", "262144", "134217728"]
    assert ok(hosts.a, values).split() == wanted
    assert ok(hosts.a, "cat /etc/sysctl.d/50-mine.conf") == mine
    ok(hosts.a, "sysctl -q net.ipv4.ip_local_reserved_ports=")  # drift
    assert len(hosts.changed("kernel", "node-a")) == 1
    hosts.a.power_off()
    hosts.a.power_on()
    assert ok(hosts.a, values).split() == wanted
    assert hosts.changed("kernel") == []


def test_shared_memory_has_the_declared_size_inside_containers(hosts: Bare) -> None:
    hosts.install("docker.io", only=hosts.a)
    libraries = "libc.so.6 libtinfo.so.6"
    paths = " ".join(f"lib/x86_64-linux-gnu/{name}" for name in libraries.split())
    files = f"bin/bash bin/df lib64/ld-linux-x86-64.so.2 {paths}"
    ok(hosts.a, f"tar -C / --dereference -c {files} | docker import - tiny:1")
    for ipc in ("container", "host"):
        ok(hosts.a, "mount -o remount,size=64m /dev/shm")  # the bad state
        hosts.edit(memory={"ipc": ipc}, limits={"memlock": "unlimited", "nofile": 16000,
                                                "stack": "32MiB"})  # fmt: skip
        hosts.apply("kernel", "node-a")
        options = make_plan(load(hosts.cluster.description).description).hosts["node-a"]
        run = [
            word for word in options.containers["ray-head"].options
            if word.startswith(("--ipc", "--shm-size", "--ulimit"))
        ]  # fmt: skip
        inside = "/bin/df --output=size -B1 /dev/shm; ulimit -n; ulimit -s"
        told = ok(hosts.a, f"docker run --rm {' '.join(run)} tiny:1 /bin/bash -c '{inside}'")
        size, files_limit, stack_kib = told.split()[-3:]
        assert (int(size), int(files_limit), int(stack_kib)) == (2**30, 16000, 32 * 1024), ipc
    assert hosts.changed("kernel", "node-a") == []
    hosts.a.power_off()
    hosts.a.power_on()
    assert ok(hosts.a, "df --output=size -B1 /dev/shm").split()[-1] == str(2**30)


def test_more_shared_memory_than_memory_is_refused(hosts: Bare) -> None:
    hosts.edit(memory={"shm": "100TiB", "object_store": "1GiB"})
    assert "and this host has" in hosts.refused("kernel", "node-a")
    assert hosts.a.exec("test", "-e", "/etc/sysctl.d/99-vllm-cluster.conf").returncode != 0


def test_a_drifted_clock_is_refused_by_name(hosts: Bare) -> None:
    # All hosts of a lab have this machine's clock: a `date` that runs ahead stands for another.
    ahead = "#!/bin/sh\nexec /usr/bin/date -d '+90 seconds' \"$@\"\n"
    hosts.b.ssh("cat > /usr/local/bin/date && chmod 755 /usr/local/bin/date", stdin=ahead)
    said = hosts.refused("kernel")
    assert "[node-b] refused: the clock is +90." in said
    assert "[node-a] refused" not in said
    ok(hosts.b, "rm /usr/local/bin/date")
    hosts.apply("kernel")
