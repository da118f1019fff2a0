"""What the seeds say: one disk, keys and no password, the addresses of the description."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.seed.cases import DISK, HOST_KEY, KEY, SYSTEMS, UUID, cluster, seed
from vllm_cluster.seed.make import boot_words
from vllm_cluster.seed.values import Kind, values
from vllm_cluster.spec import DescriptionError


def autoinstall(system: str = "ubuntu-24.04", more: str = "") -> dict[str, Any]:
    text = seed("autoinstall", system, more)[0].files["user-data"]
    assert text.startswith("#cloud-config\n")
    found = yaml.safe_load(text)["autoinstall"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("system", "kind"), SYSTEMS.items())
@pytest.mark.parametrize("key", [False, True])
def test_a_seed_lets_in_keys_and_no_password(system: str, kind: Kind, key: bool) -> None:
    for chosen in (kind, "cloud-init"):
        made, _ = seed(chosen, system, key=key)
        text = "\n".join(made.files.values())
        assert KEY in text
        assert not re.search(r"\$[0-9a-z]+\$", text), "a crypted password"
        passwords = re.findall(r"password(?:-crypted)? +password (.*)", text)
        assert set(passwords) <= {"!"}
        assert "plain_text_passwd" not in text
        assert made.secret == key
        assert ("PRIVATE KEY" in text) == key


def test_autoinstall_names_one_disk_and_no_other() -> None:
    found = autoinstall()
    assert found["storage"] == {"layout": {"name": "direct", "match": {"path": DISK}}}
    guard = found["early-commands"][0]
    assert f"link={DISK};" in guard
    assert f"/dev/disk/by-uuid/{UUID}" in guard
    # The name is udev's; what the installer compares is the kernel's.
    assert guard.strip().endswith('sed -i "s|$link|$disk|" /autoinstall.yaml')


def test_autoinstall_has_the_addresses_of_the_description() -> None:
    cards = autoinstall()["network"]["ethernets"]
    assert cards["card0"]["match"] == {"macaddress": "52:54:00:76:6d:12"}
    assert cards["card0"]["addresses"] == ["192.168.1.11/24"]
    assert cards["card0"]["routes"] == [{"to": "0.0.0.0/0", "via": "192.168.1.1"}]
    assert cards["card0"]["nameservers"] == {"addresses": ["192.168.1.1", "9.9.9.9"]}
    assert cards["card0"]["mtu"] == 9000
    assert cards["enp2s0"] == {"dhcp4": False, "addresses": ["10.0.0.11/24"]}


def test_autoinstall_says_zone_mirror_kernel_and_how_it_ends() -> None:
    more = "  time_zone: Europe/Oslo\n  mirror: http://mirror.example.com/ubuntu\n"
    found = autoinstall(more=more + "  then: poweroff\n")
    assert found["timezone"] == found["user-data"]["timezone"] == "Europe/Oslo"
    assert found["apt"]["primary"] == [
        {"arches": ["default"], "uri": "http://mirror.example.com/ubuntu"}
    ]
    assert found["shutdown"] == "poweroff"
    assert found["kernel"] == {"package": "linux-image-6.1.0-28-amd64"}
    assert "apt" not in autoinstall()
    assert found["user-data"]["users"][0]["lock_passwd"] is True


def test_a_kernel_that_no_distribution_packages_is_not_asked_for() -> None:
    told = values(cluster("debian-12"), "node-b", "preseed", kernel="6.18.5-custom")
    assert told.kernel_package == ""


@pytest.mark.parametrize("system", ["debian-12", "debian-13"])
@pytest.mark.parametrize("more", ["", "  host_key: seed\n  then: poweroff\n  user: root\n"])
def test_debconf_takes_the_preseed(system: str, more: str, tmp_path: Path) -> None:
    made, _ = seed("preseed", system, more, key="seed" in more)
    file = tmp_path / "preseed.cfg"
    file.write_text(made.files["preseed.cfg"])
    assert checkonly(file) == ""
    file.write_text(made.files["preseed.cfg"] + "d-i no/type\n")
    assert checkonly(file) != ""


def checkonly(file: Path) -> str:
    """What debconf's own checker has against the file."""
    program = shutil.which("debconf-set-selections")
    if program is None:
        pytest.skip("debconf is a part of Debian and Ubuntu; this is another system")
    done = subprocess.run(
        [program, "--checkonly", str(file)], capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode == 0 else f"exit {done.returncode}: {done.stderr}"


def answers(text: str) -> dict[str, str]:
    """Question -> value of a preseed file, continuation lines joined as debconf does."""
    lines = text.replace("\\\n", "").splitlines()
    rows = [line.split(None, 3) for line in lines if line and not line.startswith("#")]
    return {row[1]: row[3] if len(row) == 4 else "" for row in rows}


def test_preseed_answers() -> None:
    found = answers(seed("preseed", "debian-13")[0].files["preseed.cfg"])
    assert "partman-auto/disk" not in found, "set by the guard alone, from the stable name"
    early = found["partman/early_command"]
    assert f"link={DISK};" in early
    assert early.rstrip().endswith('debconf-set grub-installer/bootdev "$disk"')
    assert found["partman-lvm/device_remove_lvm"] == "false"
    assert found["netcfg/get_ipaddress"] == "192.168.1.11"
    assert found["netcfg/get_netmask"] == "255.255.255.0"
    assert found["netcfg/get_nameservers"] == "192.168.1.1 9.9.9.9"
    assert found["mirror/suite"] == "trixie"
    assert found["mirror/http/hostname"] == "deb.debian.org"
    assert found["passwd/username"] == "ops"
    late = found["preseed/late_command"]
    assert "name=enp2s0;" in late
    assert KEY in late
    assert subprocess.run(["sh", "-n", "-c", late], check=False).returncode == 0
    assert subprocess.run(["sh", "-n", "-c", early], check=False).returncode == 0


def test_the_late_command_makes_the_files(tmp_path: Path) -> None:
    """The very command, on another root: every file and its mode."""
    text = seed("preseed", "debian-12", "  user: root\n", key=True)[0].files["preseed.cfg"]
    for folder in ("etc/ssh/sshd_config.d", "etc/network", "root"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_rsa_key").write_text("the installer's")
    interfaces = tmp_path / "etc/network/interfaces"
    interfaces.write_text("iface e inet static\n\taddress 192.168.1.11/24\n")
    late = answers(text)["preseed/late_command"].replace("/target", str(tmp_path))
    late = late.replace(f"chroot {tmp_path} sed -i", "sed -i")
    late = late.replace("/etc/network/interfaces;", f"{interfaces};").replace(
        f"{tmp_path}{interfaces}", str(interfaces)
    )
    late = late.replace("in-target chown", "true")
    done = subprocess.run(["sh", "-c", late], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "root/.ssh/authorized_keys").read_text() == f"{KEY}\n"
    assert (tmp_path / "root/.ssh").stat().st_mode & 0o777 == 0o700
    private = tmp_path / "etc/ssh/ssh_host_ed25519_key"
    assert private.read_text() == HOST_KEY.private
    assert private.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "etc/ssh/ssh_host_rsa_key").exists()
    assert "mtu 9000\n" in interfaces.read_text()
    assert "iface enp2s0 inet static\n    address 10.0.0.11/24\n" in interfaces.read_text()


def test_a_cloud_image_is_told_of_no_disk() -> None:
    made, _ = seed("cloud-init", "debian-12", key=True)
    user = yaml.safe_load(made.files["user-data"])
    assert DISK not in "".join(made.files.values())
    assert not {"disk_setup", "fs_setup", "mounts"} & user.keys()
    assert user["ssh_keys"]["ed25519_private"] == HOST_KEY.private
    assert yaml.safe_load(made.files["meta-data"])["local-hostname"] == "node-b"
    assert yaml.safe_load(made.files["network-config"])["version"] == 2


def test_the_boot_line_finds_seed_and_card() -> None:
    url = "http://192.168.1.2:8080/"
    ubuntu = boot_words(*seed("autoinstall", "ubuntu-24.04"), url)
    assert ubuntu.startswith(f'autoinstall "ds=nocloud-net;s={url}" ip=192.168.1.11::192.168.1.1:')
    debian = boot_words(*seed("preseed", "debian-12"), url)
    assert f"url={url}preseed.cfg" in debian
    assert "BOOTIF=01-52-54-00-76-6d-12" in debian
    assert 'netcfg/get_nameservers="192.168.1.1 9.9.9.9"' in debian


@pytest.mark.parametrize(
    ("host", "kind", "words"),
    [
        ("node-a", "preseed", "found nothing for node-a"),
        ("node-b", "autoinstall", "whose installer reads no autoinstall"),
    ],
)
def test_what_the_description_does_not_tell_is_refused(host: str, kind: Kind, words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        values(cluster("debian-12"), host, kind)
