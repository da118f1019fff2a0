"""The firewall: what the plan lists and nothing else, and never a host that nobody reaches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.bare import Bare, bare, listening, ok, planned, scan
from tests.lab.harness import await_true
from vllm_cluster.facts.firewall import POLICY
from vllm_cluster.lab.layout import CONTROL_ADDRESS, OUTSIDE_ADDRESS

SSH, API = 22, 8000
# Ray's and vLLM's, some of everybody's, one of the ephemeral range.
PORTS = [API, *range(6379, 6389), 8265, 10001, 20000, 20999, 80, 111, 2049, 2375, 9100, 40123]
LOADER = "/usr/local/lib/vllm-cluster/firewall-load"
CUT_OFF = """table inet vllm_cluster
delete table inet vllm_cluster
table inet vllm_cluster {
	chain input {
		type filter hook input priority filter; policy drop;
	}
}
"""


MINE = """flush ruleset
table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		ct state established,related accept
		tcp dport { 22, 9999 } accept
		ip saddr 10.77.0.0/24 tcp dport 6379 accept comment "mine"
	}
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with bare("t-fw", tmp_path_factory.mktemp("fw")) as made:
        yield made


@pytest.fixture
def hosts(module: Bare) -> Bare:
    module.wipe()
    module.edit(network={"api_from": ["10.77.0.200/32"], "way_back_s": 5})
    return module


def as_planned(hosts: Bare) -> None:
    """Scans from a host of the cluster, from a user of the API, and from the operator."""
    a, b = hosts.lab.hosts
    layout = hosts.lab.layout
    everything = {SSH, *PORTS}
    scans = (
        (a, b.place.namespace, b.address, everything),
        (b, a.place.namespace, a.address, everything),
        (a, layout.outside, OUTSIDE_ADDRESS, {SSH, API}),
        (b, layout.outside, OUTSIDE_ADDRESS, {SSH}),
        (a, layout.switch, CONTROL_ADDRESS, {SSH}),
    )
    with listening([a, b], PORTS):
        for host, namespace, source, wanted in scans:
            assert planned(hosts, host, source, everything) == wanted
            assert scan(namespace, host.address, everything) == wanted, (host.name, source)


def test_a_port_scan_equals_the_plan_across_docker_restarts_and_reboots(hosts: Bare) -> None:
    hosts.install("docker.io")
    docker = "nft list table ip nat | grep -c DOCKER"
    before = ok(hosts.a, docker)
    with listening(hosts.lab.hosts, PORTS):
        assert scan(hosts.lab.layout.outside, hosts.b.address, PORTS) == {*PORTS}  # open at first
    hosts.apply("firewall")
    as_planned(hosts)
    assert ok(hosts.a, docker) == before
    ok(hosts.a, "systemctl restart docker")
    as_planned(hosts)
    for host in hosts.lab.hosts:
        host.power_cut()
        host.power_on()
    as_planned(hosts)
    order = "systemctl show -P ActiveEnterTimestampMonotonic vllm-cluster-firewall docker"
    closed, started = (int(text) for text in ok(hosts.a, order).split())
    assert 0 < closed < started
    assert hosts.changed("firewall") == []


def test_rules_that_cut_the_operator_off_undo_themselves(hosts: Bare) -> None:
    ok(hosts.a, "nft add table inet mine; nft add chain inet mine kept")
    hosts.edit(network={"ssh_from": ["10.99.0.0/16"], "way_back_s": 5})
    done = hosts.run("firewall", "node-a")
    assert done.returncode == 1, done.stdout
    assert "undone within 5 s" in done.stdout + done.stderr
    await_true("SSH again", lambda: hosts.a.ssh("true").returncode == 0, timeout_s=30)
    assert "vllm_cluster" not in ok(hosts.a, "nft list tables")
    assert "kept" in ok(hosts.a, "nft list table inet mine")
    assert hosts.a.exec("test", "-e", "/etc/vllm-cluster/firewall.nft").returncode != 0


def test_rules_that_cut_off_give_way_to_those_confirmed_before(hosts: Bare) -> None:
    hosts.apply("firewall", "node-a")
    good = ok(hosts.a, "nft list table inet vllm_cluster")
    # The operator's machine loses power after the load: nobody confirms, nobody undoes.
    # A second attempt within the limit must not take the first one for what was before.
    for _ in range(2):
        assert hosts.a.exec(LOADER, "try", "nft", "2", stdin=CUT_OFF).returncode == 0
        assert hosts.a.exec("nft", "list", "table", "inet", "vllm_cluster").stdout != good
    await_true("the rules of before", lambda: _table(hosts) == good, timeout_s=10)
    assert hosts.a.ssh(f"{LOADER} confirm").returncode == 1  # too late
    assert hosts.changed("firewall", "node-a") == []


def _table(hosts: Bare) -> str:
    return hosts.a.exec("nft", "list", "table", "inet", "vllm_cluster").stdout


def test_a_host_that_reboots_while_rules_are_tried_comes_up_with_the_old_ones(hosts: Bare) -> None:
    hosts.apply("firewall", "node-a")
    good = _table(hosts)
    assert hosts.a.exec(LOADER, "try", "nft", "500", stdin=CUT_OFF).returncode == 0
    assert _table(hosts) != good
    hosts.a.power_cut()
    hosts.a.power_on()  # would fail if SSH did not let in
    assert _table(hosts) == good
    assert hosts.changed("firewall", "node-a") == []


def test_a_broken_rule_file_changes_nothing(hosts: Bare) -> None:
    hosts.apply("firewall", "node-a")
    good = _table(hosts)
    broken = hosts.a.exec(LOADER, "try", "nft", "500", stdin="table inet vllm_cluster { nonsense")
    assert broken.returncode != 0
    assert _table(hosts) == good
    assert hosts.changed("firewall", "node-a") == []


def test_sshd_on_other_ports_stays_reachable(hosts: Bare) -> None:
    ok(hosts.a, "echo 'Port 22\nPort 2222' > /etc/ssh/sshd_config.d/ports.conf")
    ok(hosts.a, "systemctl restart ssh")
    # In the place of sshd, as newer Ubuntu has it: the socket's port stands in no sshd_config.
    socket = "[Socket]\nListenStream=2022\n"
    hosts.b.ssh("install -D /dev/stdin /etc/systemd/system/ssh.socket.d/port.conf", stdin=socket)
    ok(hosts.b, "systemctl daemon-reload; systemctl stop ssh.service; systemctl start ssh.socket")
    hosts.apply("firewall")
    outside = hosts.lab.layout.outside
    assert scan(outside, hosts.a.address, [22, 2222, 2200]) == {22, 2222}
    assert scan(outside, hosts.b.address, [22, 2022, 2200]) == {22, 2022}
    for host, ports in ((hosts.a, "{ 22, 2222 }"), (hosts.b, "{ 22, 2022 }")):
        assert f"tcp dport {ports} accept" in ok(host, "nft list table inet vllm_cluster")


def test_a_first_start_of_nftables_does_not_open_the_host(hosts: Bare) -> None:
    hosts.apply("firewall")
    ours = ok(hosts.a, "nft list table inet vllm_cluster")
    hosts.a.ssh("cat > /etc/nftables.conf", stdin=MINE)
    assert hosts.a.ssh("systemctl is-active nftables").stdout.strip() == "inactive"
    ok(hosts.a, "systemctl start nftables")
    assert "inet filter" in ok(hosts.a, "nft list ruleset")
    assert ok(hosts.a, "nft list table inet vllm_cluster") == ours


def test_rules_of_the_user_live_on_and_what_blocks_is_told(hosts: Bare) -> None:
    for host in hosts.lab.hosts:
        host.ssh("cat > /etc/nftables.conf", stdin=MINE)
        ok(host, "systemctl enable --quiet --now nftables")
    before = ok(hosts.a, "nft list table inet filter")
    said = hosts.apply("firewall")
    assert "the chain inet filter input of this host drops what it does not know" in said
    assert ok(hosts.a, "nft list table inet filter") == before
    # nftables.service flushes every table when it reloads or restarts; ours comes back.
    for verb in ("reload", "restart"):
        ok(hosts.a, f"systemctl {verb} nftables")
        assert "10.77.0.12" in ok(hosts.a, "nft list table inet vllm_cluster")
        assert ok(hosts.a, "nft list table inet filter") == before
    assert hosts.changed("firewall") == []


@pytest.mark.parametrize("tool", ["ufw", "firewalld"])
def test_a_firewall_that_is_active_is_used_and_kept(hosts: Bare, tool: str) -> None:
    start = {
        "ufw": "ufw allow 22/tcp; ufw allow 9100/tcp comment 'my exporter'; ufw --force enable",
        "firewalld": "systemctl start firewalld; until firewall-cmd --state; do sleep 0.1; done; "
        "firewall-cmd --permanent --add-port=9100/tcp; firewall-cmd --reload",
    }
    hosts.install(tool, "netbase")
    for host in hosts.lab.hosts:
        ok(host, start[tool])
    outside = hosts.lab.layout.outside
    with listening(hosts.lab.hosts, PORTS):
        assert scan(hosts.b.place.namespace, hosts.a.address, PORTS) == {9100}  # the bad state
        hosts.apply("firewall")
        assert scan(hosts.b.place.namespace, hosts.a.address, PORTS) == {*PORTS}
        assert scan(outside, hosts.a.address, [SSH, *PORTS]) == {SSH, API, 9100}
        assert scan(outside, hosts.b.address, [SSH, *PORTS]) == {SSH, 9100}
    assert "vllm_cluster" not in ok(hosts.a, "nft list tables")
    assert hosts.changed("firewall") == []

    # An API user less: the rule goes, the user's stay.
    hosts.edit(network={"api_from": ["10.77.0.201/32"]})
    hosts.apply("firewall")
    with listening([hosts.a], PORTS):
        assert scan(outside, hosts.a.address, [SSH, *PORTS]) == {SSH, 9100}

    if tool == "ufw":
        _unconfirmed_rules_are_gone_after_a_reboot(hosts)


def test_firewalls_rules_that_a_reload_would_lose_are_not_lost(hosts: Bare) -> None:
    # firewalld's direct rules are iptables' own.
    hosts.install("firewalld", "iptables", "netbase", only=hosts.a)
    ok(hosts.a, "systemctl start firewalld")
    running = ("firewall-cmd", "--state")
    await_true("firewalld", lambda: hosts.a.exec(*running).returncode == 0, timeout_s=60)
    direct = "rule ipv4 filter INPUT 0 -p tcp --dport 9101 -j ACCEPT"
    for add, ask, told in (
        ("--add-port=9100/tcp", "--query-port=9100/tcp", "9100/tcp"),
        (f"--direct --add-{direct}", f"--direct --query-{direct}", "--dport 9101"),
    ):
        ok(hosts.a, f"firewall-cmd {add}")  # in force, and in no file
        said = hosts.refused("firewall", "node-a")
        assert "firewalld has rules that are not permanent" in said
        assert told in said
        assert "firewall-cmd --runtime-to-permanent" in said
        assert ok(hosts.a, f"firewall-cmd {ask}").strip() == "yes"
        assert hosts.a.exec("test", "-e", POLICY).returncode != 0
        ok(hosts.a, "firewall-cmd --runtime-to-permanent")
    hosts.apply("firewall", "node-a")
    assert ok(hosts.a, f"firewall-cmd {ask}").strip() == "yes"
    assert hosts.changed("firewall", "node-a") == []


def _unconfirmed_rules_are_gone_after_a_reboot(hosts: Bare) -> None:
    """ufw keeps its rules on the disk, also those that are only tried."""
    rules = ok(hosts.a, "ufw show added")
    assert hosts.a.exec(LOADER, "try", "ufw", "500", stdin="delete allow 22/tcp\n").returncode == 0
    assert hosts.a.exec("ufw", "show", "added").stdout != rules
    hosts.a.power_cut()
    hosts.a.power_on()
    assert ok(hosts.a, "ufw show added") == rules
