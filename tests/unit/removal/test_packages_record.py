"""Which packages are ours: what an installation of ours brought, and nothing of anybody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vllm_cluster.operations import owned
from vllm_cluster.operations.packages import recorded
from vllm_cluster.plan import paths
from vllm_cluster.plan.owned import Record, parse

SHELLS = [name for name in ("dash", "bash") if shutil.which(name)]
# Simulated, it names iperf3; for real it brings what `brings` says and ends with what `ends` says.
APT = """#!/bin/sh
case $* in *" -s "* | "-s "*) echo "Inst iperf3 (3.12 Debian:12 [amd64])"; exit ;; esac
cat {at}/brings >>{at}/dpkg
read -r code <{at}/ends
if [ "$code" = cut ]; then kill -9 $(cat {at}/pid); fi
exit $code
"""


class Host:
    """A host as apt, dpkg and the record see it."""

    def __init__(self, at: Path, shell: str) -> None:
        self.at, self.shell = at, shell
        for name, text in {
            "apt-get": APT.format(at=at), "dpkg-query": f"#!/bin/sh\ncat {at}/dpkg\n",
        }.items():  # fmt: skip
            (at / name).write_text(text)
            (at / name).chmod(0o755)
        (at / "dpkg").write_text("installed bash 5.2\n")
        (at / "passwd").write_text("root:x:0\n")
        (at / "group").write_text("root:x:0\n")

    def sh(self, text: str) -> int:
        for path in (paths.CONFIG, "/etc/passwd", "/etc/group"):
            text = text.replace(path, f"{self.at}/{path.rpartition('/')[2]}")
        text = f"echo $$ >{self.at}/pid\n{text}"
        env = {"PATH": f"{self.at}:{os.environ['PATH']}"}
        return subprocess.run([self.shell, "-c", text], env=env, check=False).returncode

    def installs(self, brings: str = "", ends: str = "0") -> int:
        (self.at / "brings").write_text(brings)
        (self.at / "ends").write_text(f"{ends}\n")
        return self.sh(recorded("iperf3"))

    def gets(self, package: str, account: str = "") -> None:
        """Somebody else installs something."""
        with (self.at / "dpkg").open("a") as file:
            file.write(f"installed {package} 1\n")
        for name in ("passwd", "group") if account else ():
            with (self.at / name).open("a") as file:
                file.write(f"{account}:x:500\n")

    @property
    def record(self) -> Record:
        journal = self.at / "vllm-cluster/owned/journal"
        return parse(journal.read_text().splitlines() if journal.exists() else [])

    @property
    def ours(self) -> set[str]:
        return set(self.record.first("package"))


@pytest.fixture(params=SHELLS)
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Host:
    return Host(tmp_path, request.param)


def test_what_an_installation_brought_is_ours_with_its_dependencies(host: Host) -> None:
    (host.at / "dpkg").write_text("installed bash 5.1\ninstalled old 1\nconfig-files libiperf0 3\n")
    new = "installed bash 5.2\ninstalled iperf3 3.12\ninstalled libiperf0 3.12\n"
    (host.at / "apt-get").write_text(APT.format(at=host.at).replace(">>", ">"))
    assert host.installs(new) == 0
    assert host.record.first("package") == {"iperf3": "purge", "libiperf0": "remove"}
    assert host.record.first("upgraded") == {"bash": "5.1"}
    assert host.record.first("gone") == {"old": "1"}


def test_what_somebody_installs_after_an_installation_that_failed_is_theirs(host: Host) -> None:
    assert host.installs(ends="100") != 0
    host.gets("postgresql", account="postgres")
    assert host.installs("installed iperf3 3.12\n") == 0
    assert host.ours == {"iperf3"}
    assert not host.record.first("user")


def test_what_an_installation_that_failed_brought_is_ours(host: Host) -> None:
    assert host.installs("half-configured iperf3 3.12\n", ends="100") != 0
    assert host.ours == {"iperf3"}


def test_after_an_installation_that_was_cut_off_what_apt_named_is_ours(host: Host) -> None:
    assert host.installs("installed iperf3 3.12\n", ends="cut") != 0
    host.gets("postgresql", account="postgres")
    assert host.ours == set()
    assert host.installs() == 0
    assert host.ours == {"iperf3"}
    assert not host.record.first("user")


def test_a_removal_takes_nothing_of_others_for_ours_either(host: Host) -> None:
    host.installs("installed iperf3 3.12\n", ends="cut")
    host.gets("postgresql")
    assert host.sh(f"{owned.PACKAGES}own_cut") == 0
    assert host.ours == {"iperf3"}
    assert not list((host.at / "vllm-cluster/owned").glob("pending*"))


def test_a_record_of_before_that_does_not_say_what_apt_named_claims_nothing(host: Host) -> None:
    host.installs("installed iperf3 3.12\n", ends="cut")
    (host.at / "vllm-cluster/owned/named").unlink()
    assert host.sh(f"{owned.PACKAGES}own_cut") == 0
    assert host.ours == set()
