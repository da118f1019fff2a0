"""Doctor, status, bundle and measurements on two hosts that serve with real Ray and vLLM."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.doctor import prove, suite
from tests.lab.doctor.pairs import REAL_PAIRS
from tests.lab.doctor.prove import EVERY, FAULTS, ON_REAL
from tests.lab.harness import BIN, ROOT, Cluster, describe

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not EVERY, reason="real Ray and vLLM, and minutes: FAULTS=all"),
]
SECONDS_FOR_TWO_HOSTS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two hosts that serve."""
    yield from prove.deployed("t-doctor", lambda lab: describe(lab, lab.layout.directory))


def run(cluster: Cluster, *words: str, before: tuple[str, ...] = ()) -> tuple[int, Any]:
    """Exit code and JSON of `vllm-cluster WORDS… --json FILE`."""
    argv = [*before, str(BIN / "vllm-cluster"), *words, "--json", str(cluster.description)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_sound_cluster_has_no_finding_and_is_looked_at_in_seconds(cluster: Cluster) -> None:
    said = min((suite.doctor(cluster) for _ in range(3)), key=lambda said: said.seconds)
    assert said.findings == []
    assert said.code == 0
    assert said.seconds < SECONDS_FOR_TWO_HOSTS


def test_a_look_changes_nothing_on_a_host(cluster: Cluster) -> None:
    touch = "touch /run/before"
    look = (
            "find /etc /var/lib/vllm-cluster /usr/local /root /tmp /opt -newer /run/before "
            "-type f ! -path '/var/lib/vllm-cluster/ray/*' ! -path '*/compile-cache/*'"
    )  # fmt: skip
    for host in ("node-a", "node-b"):
        cluster.on(host, touch)
    suite.doctor(cluster)
    for host in ("node-a", "node-b"):
        assert cluster.on(host, look) == ""


def test_the_screen_shows_ranks_requests_and_units_as_they_are(cluster: Cluster) -> None:
    code, told = run(cluster, "status")
    assert code == 0
    assert {(r["rank"], r["planned"], r["found"]) for r in told["ranks"]} == {
        (0, "node-a", "node-a"), (1, "node-b", "node-b")
    }  # fmt: skip
    assert told["api"]["answers"] is True
    assert told["api"]["waiting"] == 0
    active = cluster.on("node-b", "systemctl is-active ray-worker").strip()
    assert told["hosts"]["node-b"]["units"]["ray-worker.service"]["state"].startswith(active)


def test_the_archive_of_a_real_cluster_holds_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    argv = [str(BIN / "vllm-cluster"), "support-bundle", str(cluster.description)]
    subprocess.run([*argv, "--output", str(path)], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(path) as tar:
        content = b"".join(file.read() for member in tar if (file := tar.extractfile(member)))
    assert b"ray-head" in content
    assert b"@@vllm-cluster ray-file" in content
    for secret in cluster.secrets.values():
        assert secret.encode() not in content


def test_a_link_is_measured_and_a_slow_one_is_told_from_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, told = run(cluster, "doctor", "network")
    assert code == 0, told
    fast = told["pairs"][0]
    assert fast["loss"] == 0
    assert fast["mtu"] == fast["card_mtu"] == fast["card_mtu_back"] == 1500
    assert "dev fabric0" in fast["route"]
    assert "dev fabric0" in fast["route_back"]
    host = cluster.lab.host("node-b")
    host.shape("100mbit")
    try:
        code, told = run(cluster, "doctor", "network")
    finally:
        host.shape(None)
    slow = told["pairs"][0]
    assert code == 1
    assert 0.02 < slow["gbit_s"] < 0.11
    assert any("slower than last time" in words for words in told["problems"])


def test_sums_between_the_hosts_are_right_in_the_image_itself(cluster: Cluster) -> None:
    code, told = run(cluster, "doctor", "collective")
    assert code == 0, told
    assert told["backend"] == "gloo"
    assert [line["size_bytes"] for line in told["lines"]] == [1024, 65536, 1048576, 16777216]


def test_from_outside_the_api_answers_and_nothing_of_ray(cluster: Cluster) -> None:
    outside = tuple(cluster.lab.outside_argv([]))
    code, told = run(cluster, "doctor", "exposure", before=outside)
    assert code == 0
    assert set(told["open"]) == {"node-a:22", "node-b:22", "node-a:8000"}
    cluster.on("node-a", "systemctl stop vllm-cluster-firewall")
    # The head lets nobody else to its GCS, without the firewall too.
    tables = "for t in vllm_cluster vllm_cluster_gcs; do nft delete table inet $t; done"
    cluster.on("node-a", tables)
    try:
        code, told = run(cluster, "doctor", "exposure", before=outside)
    finally:
        cluster.on("node-a", "systemctl start vllm-cluster-firewall")
    assert code == 1
    assert "ray gcs (6379)" in told["findings"][0]["found"]
    assert "tcp dport 6379" in cluster.on("node-a", "nft list table inet vllm_cluster_gcs")
    suite.touched(cluster)


@pytest.mark.parametrize("name", ON_REAL)
def test_the_first_line_is_the_cause_and_its_fix_heals(cluster: Cluster, name: str) -> None:
    prove.one(cluster, FAULTS[name])


@pytest.mark.parametrize("names", REAL_PAIRS, ids="+".join)
def test_of_two_faults_each_is_named_and_healed(cluster: Cluster, names: tuple[str, str]) -> None:
    prove.pair(cluster, [FAULTS[name] for name in names])
