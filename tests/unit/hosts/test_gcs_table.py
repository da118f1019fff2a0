"""The head's door to Ray's GCS: seen where somebody took it away, put up again, and told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from tests.unit.doctor.here import description
from tests.unit.hosts.recorder import sent
from vllm_cluster.doctor.checks.firewall import firewall
from vllm_cluster.facts import gcs_table
from vllm_cluster.plan import paths
from vllm_cluster.steps.firewall import firewall_step

ROOT = Path(__file__).parents[3]
DOOR = ROOT / "templates/usr/local/lib/vllm-cluster/door"
SOURCES = ("10.77.0.11", "10.77.0.12")
# The kernel's tables: a file, of another network another one.
NFT = """#!/bin/sh
case $1 in
  -f) ! grep -q nonsense "$2" && sed '1,2d' "$2" >"$NET" ;;
  -n) cat "$NET" ;;
  delete) rm -f "$NET" ;;
esac
"""
UNSHARE = """#!/bin/sh
shift
NET=$NET.other exec "$@"
"""
UFW = "ufw Status: active\nufw active\nufw Default: deny (incoming), allow (outgoing)\n"


class Head:
    """A head with an nft and an unshare of its own."""

    def __init__(self, at: Path) -> None:
        self.at, self.table, self.kept = at, at / "table", at / "units/gcs.nft"
        (at / "bin").mkdir()
        for name, text in (("nft", NFT), ("unshare", UNSHARE)):
            self.program(name, text)

    def program(self, name: str, text: str) -> None:
        (self.at / "bin" / name).write_text(text)
        (self.at / "bin" / name).chmod(0o755)

    def _run(self, *argv: str, stdin: str = "") -> str:
        path = f"{self.at}/bin:{os.environ['PATH']}"
        values = {"PATH": path, "NET": str(self.table), "UNITS_STATE": str(self.kept.parent)}
        return subprocess.run(
            argv, input=stdin, env=values, capture_output=True, text=True, check=False
        ).stdout

    def door(self, *words: str) -> None:
        self._run("bash", str(DOOR), *words)

    def looked_at(self) -> str:
        text = gcs_table.SHELL.replace(paths.UNITS_STATE, str(self.kept.parent))
        said = {self._run(shell, "-s", stdin=f"{text}gcs_table\n") for shell in ("sh", "bash")}
        return said.pop() if len(said) == 1 else f"two answers: {said}"


@pytest.fixture
def head(tmp_path: Path) -> Head:
    made = Head(tmp_path)
    made.door("only", "6379", *SOURCES)
    return made


def test_a_door_that_stands_is_as_it_was_put_up(head: Head) -> None:
    assert "ip saddr 10.77.0.12 accept" in head.table.read_text()
    assert head.looked_at() == ""


def test_a_door_that_somebody_took_away_is_seen(head: Head) -> None:
    head.table.unlink()
    assert head.looked_at() == "gcs absent\n"


def test_a_door_that_somebody_emptied_is_seen(head: Head) -> None:
    lines = head.table.read_text().splitlines()
    head.table.write_text("\n".join(x for x in lines if "accept" not in x and "reject" not in x))
    assert head.looked_at() == "gcs changed\n"


def test_where_the_head_does_not_run_no_door_is_missing(head: Head) -> None:
    head.door("any")
    assert not head.table.exists()
    assert head.looked_at() == ""


def test_a_door_that_nft_refused_is_not_missed(head: Head) -> None:
    head.door("any")
    head.door("only", "6379", "nonsense")
    assert not head.kept.exists()
    assert head.looked_at() == ""


def test_a_head_that_stops_meanwhile_is_not_misread(head: Head) -> None:
    head.table.unlink()
    head.program("unshare", f"#!/bin/sh\nrm {head.kept}\n")
    assert head.looked_at() == ""


def test_without_a_network_of_its_own_a_table_that_is_there_is_believed(head: Head) -> None:
    head.program("unshare", "#!/bin/sh\nexit 1\n")
    assert head.looked_at() == ""
    head.table.unlink()
    assert head.looked_at() == "gcs absent\n"


def step() -> None:
    firewall_step()


@pytest.mark.parametrize("holder", ["", UFW])
def test_a_run_puts_it_up_again_whoever_holds_the_firewall(
    holder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_cluster.operations.ssh.run", lambda *_, **__: True)
    again = f"{paths.SCRIPTS}/firewall-load again"
    data = {"description": str(description(tmp_path))}
    for said, times in (("gcs absent\n", 1), ("gcs changed\n", 1), ("", 0)):
        answers = {"sshd -T": f"ssh 22\n{holder}{said}"}
        commands = sent(step, "node-a", {**data, "answers": answers})
        assert commands.count(again) == times, said
    assert "again) again ;;" in (DOOR.parent / "firewall-load").read_text()


def test_doctor_names_it_and_the_fix_and_not_beside_a_firewall_that_is_gone() -> None:
    case = changed(sound(), "node-a", gcs="absent")
    found = first(case)
    assert (found.id, found.host) == ("security.firewall-gcs", "node-a")
    assert found.fix[0].command == f"systemctl restart {paths.FIREWALL_UNIT}"
    flushed = changed(case, "node-a", nft="")
    assert first(flushed).id == "security.firewall"
    assert "security.firewall-gcs" in ids(flushed)
    assert list(firewall(sound())) == []
