"""Seeds held against the installers' own checkers: subiquity's schema, cloud-init, netplan.

debconf's is in tests/unit/seed: it is on every Debian.
"""

from __future__ import annotations

from collections.abc import Iterator

import jsonschema
import pytest
import yaml

from tests.lab.bare import ok
from tests.lab.installers import REVISIONS, autoinstall_schema
from tests.lab.names import lab_name
from tests.unit.seed.cases import seed
from vllm_cluster.lab import Lab
from vllm_cluster.lab.host import Host

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
NAME = lab_name("t-seed")
MORE = ["", "  mirror: http://mirror.example.com/ubuntu\n  then: poweroff\n  user: root\n"]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("system", ["ubuntu-22.04", "ubuntu-24.04"])
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("key", [False, True])
def test_subiquity_takes_the_autoinstall(
    revision: str, system: str, more: str, *, key: bool
) -> None:
    text = seed("autoinstall", system, more, key=key)[0].files["user-data"]
    schema = autoinstall_schema(revision)
    config = yaml.safe_load(text)["autoinstall"]
    jsonschema.validate(config, schema)
    assert set(config) <= set(schema["properties"]), "a key that this installer does not know"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"ssh": {"allow-pw": "no"}}, schema)


@pytest.fixture(scope="module")
def checker() -> Iterator[Host]:
    """A host with cloud-init and netplan, never booted with them."""
    lab = Lab.up(1, name=NAME, release="trixie")
    try:
        host = lab.host("node-a")
        ok(host, "apt-get update -qq && apt-get install -qq -y --no-install-recommends "
                 "cloud-init netplan.io >/dev/null")  # fmt: skip
        yield host
    finally:
        lab.down()


def checked(host: Host, text: str, *options: str) -> tuple[int, str]:
    """Exit code and words of cloud-init's checker."""
    put = host.ssh("cat > /root/checked.yaml", stdin=text)
    assert put.returncode == 0
    words = " ".join(options)
    done = host.ssh(f"cloud-init schema {words} --config-file /root/checked.yaml 2>&1")
    return done.returncode, done.stdout


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("key", [False, True])
def test_cloud_init_takes_the_user_data(checker: Host, more: str, *, key: bool) -> None:
    files = seed("cloud-init", "debian-13", more, key=key)[0].files
    code, words = checked(checker, files["user-data"])
    assert code == 0, words
    assert "deprecat" not in words.lower(), words
    code, words = checked(checker, files["user-data"] + "users: 3\n")
    assert code == 1, words


@pytest.mark.parametrize("system", ["ubuntu-22.04", "ubuntu-24.04"])
def test_cloud_init_takes_what_the_installer_hands_on(checker: Host, system: str) -> None:
    text = seed("autoinstall", system, key=True)[0].files["user-data"]
    handed = yaml.safe_load(text)["autoinstall"]["user-data"]
    code, words = checked(checker, "#cloud-config\n" + yaml.safe_dump(handed))
    assert code == 0, words


def test_cloud_init_and_netplan_take_the_network(checker: Host) -> None:
    text = seed("cloud-init", "debian-13")[0].files["network-config"]
    code, words = checked(checker, text, "--schema-type", "network-config")
    assert code == 0, words
    code, words = checked(checker, text.replace("addresses", "adresses"), "--schema-type",
                          "network-config")  # fmt: skip
    assert code == 1, words
    installer = seed("autoinstall", "ubuntu-24.04")[0].files["user-data"]
    network = yaml.safe_load(installer)["autoinstall"]["network"]
    plan = yaml.safe_dump({"network": network})
    root = "/root/planned"
    put = f"mkdir -p {root}/etc/netplan && cat > {root}/etc/netplan/a.yaml && "
    put += f"chmod 600 {root}/etc/netplan/a.yaml && netplan generate --root-dir {root} 2>&1"
    done = checker.ssh(put, stdin=plan)
    assert done.returncode == 0, done.stdout
    units = ok(checker, f"cat {root}/run/systemd/network/*.network")
    assert "Address=192.168.1.11/24" in units
    assert "Gateway=192.168.1.1" in units
