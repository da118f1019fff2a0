"""Power, disks and limits of a host: what a server does when it is cut, shut down, reinstalled."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.names import lab_name
from vllm_cluster.lab import Host, Lab, LabError, down, kernel_settings

pytestmark = pytest.mark.lab
NAME = lab_name("t-lab-power")
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    yield Lab.up(2, name=NAME)
    down(NAME)


@pytest.fixture
def host(lab: Lab) -> Host:
    host = lab.host("node-a")
    host.power_on()
    return host


def on(host: Host, command: str) -> str:
    done = host.ssh(command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def eventually(question: str, host: Host, wanted: str, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while (got := host.ssh(question).stdout.strip()) != wanted:
        assert time.monotonic() < end, f"{question}: {got!r}, not {wanted!r}"


def test_a_cut_says_goodbye_to_nobody(lab: Lab, host: Host) -> None:
    talk = ["socat", "-u", f"TCP:{host.address}:22", "STDOUT"]
    client = subprocess.Popen(lab.outside_argv(talk), stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline().startswith(b"SSH-2.0")
    host.power_cut()
    connections = lab.outside("ss", "-Htn", "dst", host.address).stdout
    assert "ESTAB" in connections  # neither closed nor reset
    client.kill()
    client.wait()
    refused = lab.outside("socat", "-u", f"TCP:{host.address}:22,connect-timeout=1", "STDOUT")
    assert "refused" not in refused.stderr
    assert refused.returncode != 0
    assert not host.is_on
    assert host.leader_pid is None


def test_after_a_cut_the_disk_is_as_it_was_and_what_was_in_memory_is_gone(host: Host) -> None:
    boot = on(host, f"echo kept > /root/file; touch /run/gone; nft add table inet gone; {BOOT_ID}")
    host.power_cut()
    assert host.power_on() == "running"
    assert on(host, BOOT_ID) != boot
    assert on(host, "cat /root/file") == "kept"
    assert on(host, "nft list tables") == ""
    assert host.ssh("test -e /run/gone").returncode == 1


def test_a_clean_shutdown_stops_units_and_a_cut_does_not(host: Host) -> None:
    unit = "[Service]\nExecStart=sleep infinity\nExecStop=touch /root/stopped\n"
    host.ssh("cat > /etc/systemd/system/witness.service", stdin=unit)
    for power_off, stopped in ((host.power_cut, "no"), (host.power_off, "yes")):
        on(host, "rm -f /root/stopped; systemctl daemon-reload; systemctl start witness")
        power_off()
        host.power_on()
        assert on(host, "test -e /root/stopped && echo yes || echo no") == stopped


def test_a_reboot_from_inside_brings_the_host_back_by_itself(host: Host) -> None:
    before = on(host, f"nft add table inet gone; {BOOT_ID}")
    host.ssh("systemctl reboot")
    end = time.monotonic() + 60
    while True:
        now = host.ssh(BOOT_ID)
        if now.returncode == 0 and now.stdout.strip() != before:
            break
        assert time.monotonic() < end, host.console.read_text()
    assert on(host, "nft list tables") == ""


def test_a_host_that_shuts_itself_down_is_off(host: Host) -> None:
    host.ssh("systemctl poweroff")
    host.power_off()  # waits for it
    assert not host.is_on
    with pytest.raises(LabError, match="node-a is off; power-on starts it"):
        host.exec("true")


def test_power_of_one_host_leaves_the_other_alone(lab: Lab, host: Host) -> None:
    other = lab.host("node-b")
    before = on(other, BOOT_ID), other.leader_pid
    host.power_cut()
    host.power_on()
    host.power_off()
    assert (on(other, BOOT_ID), other.leader_pid) == before


def test_hosts_have_units_of_the_same_name_without_touching_each_other(
    lab: Lab, host: Host
) -> None:
    other = lab.host("node-b")
    for each in (host, other):
        on(each, "systemd-run --unit=same --quiet sleep infinity")
    on(host, "systemctl stop same")
    assert on(other, "systemctl is-active same") == "active"
    on(other, "systemctl stop same")


def test_a_wipe_gives_a_bare_system_with_another_identity(lab: Lab, host: Host) -> None:
    identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    before = on(host, f"mkdir -p /var/lib/docker/x; touch /root/x /etc/x; {identity}")
    other = on(lab.host("node-b"), identity)
    device = host.add_disk(1 << 20)
    known = lab.layout.known_hosts.read_text()
    assert host.wipe() == "running"
    after = on(host, identity)  # with StrictHostKeyChecking: the lab knows the new key
    assert len({*before.splitlines(), *after.splitlines(), *other.splitlines()}) == 6
    assert lab.layout.known_hosts.read_text() != known
    assert (
        on(host, "ls /root /var/lib/docker; ls -d /etc/x || true") == "/root:\n\n/var/lib/docker:"
    )
    assert host.ssh(f"test -e {device}").returncode == 1
    stale = lab.layout.directory / "stale_known_hosts"
    stale.write_text(known)
    argv = ["ssh", "-F", str(lab.layout.ssh_config), "-o", f"UserKnownHostsFile={stale}"]
    old = subprocess.run([*argv, "node-a", "true"], check=False, capture_output=True, text=True)
    assert old.returncode == 255
    assert "Host key verification failed" in old.stderr


def test_a_further_disk_keeps_what_is_on_it_over_a_cut(host: Host) -> None:
    uuid = "6ae05a70-4f06-4d4e-9a35-0f2a6a3c1a11"
    device = host.add_disk(32 << 20)
    on(host, f"apt-cache --version >/dev/null; mkfs.ext4 -q -U {uuid} {device}")
    on(host, f"mount UUID={uuid} /mnt && echo data > /mnt/file && sync -f /mnt")
    host.power_cut()
    host.power_on()
    assert on(host, f"mount UUID={uuid} /mnt && cat /mnt/file") == "data"


def test_exec_reaches_a_host_that_ssh_does_not(host: Host) -> None:
    on(host, "systemctl stop ssh.socket ssh.service || true")
    host.link(up=False)
    assert host.ssh("true").returncode == 255
    assert host.exec("hostname").stdout == "node-a\n"
    assert host.exec("sh", "-c", "exit 7").returncode == 7
    assert host.exec("cat", stdin="text").stdout == "text"
    host.link(up=True)
    host.exec("systemctl", "start", "ssh")


def test_root_raises_limits_as_on_a_server_and_others_do_not(host: Host) -> None:
    for limit in ("-l unlimited", "-n 1048576", "-u unlimited"):
        assert on(host, f"bash -c 'ulimit -H {limit} && echo done'") == "done"
        refused = host.ssh(f"bash -c 'ulimit -H {limit}'", user="ops")
        assert refused.returncode != 0
    assert on(host, "bash -c 'ulimit -n 100; ulimit -Hn'") == "100"  # lowering is real


def test_ops_has_the_key_and_sudo_without_a_password(host: Host) -> None:
    assert host.ssh("sudo -n id -u", user="ops").stdout == "0\n"
    assert host.ssh("id -un", user="ops").stdout == "ops\n"


def test_a_bare_server_has_debians_habits_and_no_python(host: Host) -> None:
    assert "127.0.1.1\tnode-a" in on(host, "cat /etc/hosts").splitlines()
    assert on(host, "getent hosts node-a").split()[0] == "127.0.1.1"
    assert host.ssh("command -v python3 docker").returncode != 0
    assert on(host, "systemctl is-system-running") == "running"
    assert "apt-daily" not in on(host, "systemctl list-timers --no-legend")
    assert on(host, "ls /sys/class/net").split() == ["fabric0", "lo"]


def test_the_journal_is_kept_over_a_boot(host: Host) -> None:
    on(host, "logger -t mark before-the-cut && journalctl --sync")
    host.power_cut()
    host.power_on()
    eventually("journalctl -q -b -1 -t mark -o cat | tail -1", host, "before-the-cut")


def test_kernel_settings_that_hosts_changed_are_put_back(host: Host, tmp_path: Path) -> None:
    setting = Path("/proc/sys/vm/vfs_cache_pressure")
    before = setting.read_text()
    file = tmp_path / "settings.json"
    kernel_settings.keep(file)
    on(host, f"sysctl -w vm.vfs_cache_pressure={int(before) + 1}")
    assert setting.read_text() != before  # one kernel for all: the reason for it
    said = kernel_settings.put_back(file)
    assert setting.read_text() == before
    assert any(str(setting) in line for line in said)
    assert kernel_settings.put_back(file) == []
