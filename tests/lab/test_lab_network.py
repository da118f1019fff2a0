"""The network between the hosts, the outsider, and the packages that come over it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.names import lab_name
from vllm_cluster.lab import Host, Lab, WrongValueError, down
from vllm_cluster.lab.apt_proxy import Store

pytestmark = pytest.mark.lab
NAME = lab_name("t-lab-net")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    yield Lab.up(2, name=NAME)
    down(NAME)


@pytest.fixture
def host(lab: Lab) -> Iterator[Host]:
    host = lab.host("node-a")
    yield host
    host.link(up=True)
    host.shape(None)


def on(host: Host, command: str, timeout_s: float = 300) -> str:
    done = host.ssh(command, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_hosts_reach_each_other(lab: Lab) -> None:
    first, second = lab.hosts
    on(first, f"ping -c1 -W2 {second.address}")
    on(second, f"ping -c1 -W2 {first.address}")


def test_hosts_have_no_way_out(lab: Lab) -> None:
    for host in lab.hosts:
        routes = json.loads(on(host, "ip -j route show table all type unicast"))
        assert {r["dst"] for r in routes if "." in r["dst"]} == {"10.77.0.0/24"}
        asked = host.ssh("ip route get 203.0.113.1")  # asks the table, sends nothing
        assert asked.returncode != 0
        assert "unreachable" in asked.stderr


def test_the_machine_itself_has_no_way_to_the_hosts_but_through_the_namespaces(lab: Lab) -> None:
    addresses = subprocess.run(["ip", "-o", "address"], check=True, capture_output=True, text=True)
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True)
    assert "10.77.0." not in addresses.stdout + routes.stdout
    assert lab.host("node-a").ssh("true").returncode == 0


def test_an_outsider_reaches_the_hosts_from_an_address_that_is_none(lab: Lab, host: Host) -> None:
    talk = lab.outside_argv(["socat", "-u", f"TCP:{host.address}:22", "STDOUT"])
    client = subprocess.Popen(talk, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline().startswith(b"SSH-2.0")
    peers = on(host, "ss -Htn state established '( sport = :22 )'")
    client.kill()
    client.wait()
    assert "10.77.0.200:" in peers
    assert "10.77.0.200" not in {h.address for h in lab.hosts}


def test_a_pulled_cable_is_seen_on_both_sides(lab: Lab, host: Host) -> None:
    ping = ("ping", "-c1", "-W1", host.address)
    carrier = ("cat", "/sys/class/net/fabric0/carrier")
    assert lab.outside(*ping).returncode == 0
    assert host.exec(*carrier).stdout == "1\n"
    host.link(up=False)
    assert lab.outside(*ping).returncode == 1
    assert host.exec(*carrier).stdout == "0\n"
    host.link(up=True)
    assert lab.outside(*ping).returncode == 0


def test_a_rate_is_set_on_both_ends_and_taken_off(lab: Lab, host: Host) -> None:
    def rates() -> list[str]:
        ends = ((lab.layout.switch, host.name), (host.place.namespace, "fabric0"))
        argv = [["tc", "-n", space, "qdisc", "show", "dev", device] for space, device in ends]
        said = [subprocess.run(a, check=True, capture_output=True, text=True).stdout for a in argv]
        return [text.partition(" rate ")[2].partition(" ")[0] for text in said]

    assert rates() == ["", ""]
    host.shape("10mbit")
    assert rates() == ["10Mbit", "10Mbit"]
    host.shape("1gbit")
    assert rates() == ["1Gbit", "1Gbit"]
    host.shape(None)
    assert rates() == ["", ""]
    with pytest.raises(WrongValueError, match="kbit, mbit or gbit"):
        host.shape("fast")


def test_hosts_install_packages_though_they_have_no_way_out(lab: Lab) -> None:
    for host in lab.hosts:
        assert host.ssh("command -v bc").returncode != 0
        on(host, "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install bc")
        assert on(host, "echo 2^64 | bc") == "18446744073709551616"


def test_the_proxy_serves_the_package_sources_and_nothing_else(host: Host) -> None:
    ask = "curl -s -o /dev/null -w '%{http_code}' -x http://10.77.0.1:3142 "
    source = on(host, "sed -n 's/^deb .*] //p' /etc/apt/sources.list | head -1").split()[0]
    assert on(host, ask + f"{source}dists/bookworm/InRelease") == "200"
    assert on(host, ask + f"{source}pool/main/n/no/no_1_all.deb") == "404"
    assert on(host, ask + "http://203.0.113.80/") == "403"
    assert on(host, ask + f"--path-as-is {source}../other") == "403"


def test_the_proxy_keeps_packages_and_serves_what_it_has_when_the_archive_is_away(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "archive"
    (archive / "pool").mkdir(parents=True)
    store = Store(tmp_path / "cache", [f"copy:{archive}"])
    package, index = f"copy:{archive}/pool/a_1_all.deb", f"copy:{archive}/InRelease"
    (archive / "pool/a_1_all.deb").write_text("first")
    (archive / "InRelease").write_text("first")
    assert store.get(package).read_text() == "first"
    assert store.get(index).read_text() == "first"
    (archive / "pool/a_1_all.deb").write_text("never read again")
    assert store.get(package).read_text() == "first"
    (archive / "InRelease").unlink()
    store.index_age_s = 0
    assert store.get(index).read_text() == "first"
    with pytest.raises(OSError, match="b_1_all"):
        store.get(f"copy:{archive}/pool/b_1_all.deb")
    assert not list((tmp_path / "cache").glob("*.new"))


def test_docker_runs_as_the_units_run_it(lab: Lab) -> None:
    """Host network, a size of shared memory, and limits beyond what this machine may have."""
    install = (
        "apt-get -q update && DEBIAN_FRONTEND=noninteractive "
        "apt-get -qy install --no-install-recommends docker.io"
    )
    config = ["-F", str(lab.layout.ssh_config)]
    both = [
        subprocess.Popen(["ssh", *config, h.name, install], stdout=subprocess.DEVNULL)
        for h in lab.hosts
    ]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    host = lab.host("node-b")
    on(
        host,
        "tar -C / -c bin lib lib64 usr/bin usr/lib/$(uname -m)-linux-gnu usr/lib64 2>/dev/null"
        " | docker import - tiny:1",
    )
    flags = "--rm --network host --shm-size 256m --ulimit memlock=-1 --ulimit nofile=1048576"
    inside = "df -BM --output=size /dev/shm | tail -1; cat /sys/class/net/fabric0/mtu"
    assert on(host, f"docker run {flags} tiny:1 sh -c '{inside}'").split() == ["256M", "1500"]
    assert on(host, "docker info -f '{{.Driver}} {{.CgroupDriver}}'") == "overlay2 systemd"
    host.power_cut()
    host.power_on()
    assert on(host, "docker image ls -q tiny:1 | wc -l") == "1"
