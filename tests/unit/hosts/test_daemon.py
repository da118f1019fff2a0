"""The way back of daemon.json: what we wrote is taken back, what somebody else wrote never is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vllm_cluster.facts.docker import DockerState, Tenant
from vllm_cluster.operations import daemon
from vllm_cluster.operations.files import File

MERGED = '{"log-driver": "local"}\n'


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of files, and a systemctl whose Docker does not start."""
    (tmp_path / "bin").mkdir()
    for name, code in (("systemctl", '[ "$1" != restart ]'), ("journalctl", "true")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "var/lib/vllm-cluster").mkdir(parents=True)
    return tmp_path


def run(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    for top in ("/etc/docker", "/var/lib/vllm-cluster"):
        command = command.replace(top, f"{root}{top}")
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


def change(root: Path, before: str | None) -> Path:
    """What a run does that merges our settings into `before`."""
    file = root / "etc/docker/daemon.json"
    if before is not None:
        file.write_text(before)
    have = DockerState({}, config=None if before is None else before.encode())
    kept = daemon._kept(have, File(MERGED, ours=False)).get_raw_value()
    assert run(root, kept).returncode == 0
    file.write_text(MERGED)
    return file


@pytest.mark.parametrize("before", [None, '{"debug": true}\n'])
def test_what_we_wrote_is_taken_back(host: Path, before: str | None) -> None:
    file = change(host, before)
    done = run(host, daemon._restart())
    assert (done.returncode, "is as before" in done.stderr) == (1, True)
    assert (file.read_text() if file.exists() else None) == before


@pytest.mark.parametrize("before", [None, '{"debug": true}\n'])
def test_what_somebody_wrote_since_stays(host: Path, before: str | None) -> None:
    file = change(host, before)
    mine = '{"log-driver": "local", "dns": "not a list"}\n'
    file.write_text(mine)
    done = run(host, daemon._restart())
    assert done.returncode == 1
    assert "changed by somebody else" in done.stderr
    assert file.read_text() == mine


def test_a_file_that_we_never_wrote_stays(host: Path) -> None:
    file = host / "etc/docker/daemon.json"
    file.write_text('{"dns": "not a list"}\n')
    assert run(host, daemon._restart()).returncode == 1
    assert file.read_text() == '{"dns": "not a list"}\n'


def test_what_is_validated_is_for_root_alone(host: Path) -> None:
    seen = host / "bin/dockerd"
    seen.write_text('#!/bin/sh\nstat -c %a "${2#--config-file=}" >&2; exit 1\n')
    seen.chmod(0o755)
    done = run(host, daemon._validated(MERGED).get_raw_value())
    assert done.stderr.strip() == "600"


def test_whose_containers_a_restart_ends_is_known_before_it() -> None:
    theirs, ours = Tenant("web", True, "no", (), False), Tenant("vllm", True, "no", (), True)
    stopped = Tenant("old", False, "no", (), False)
    have = DockerState({}, containers=(theirs, ours, stopped))
    assert daemon._ended(have, MERGED) == ["web"]
    assert daemon._ended(have, '{"live-restore": true}') == []
