"""Faults put in on purpose: doctor's first line is the cause, and its fix heals.

A few by default; all of them, alone and in pairs, with FAULTS=all (`make test-doctor`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.conftest import with_standin
from tests.lab.doctor import prove, suite
from tests.lab.doctor.pairs import PAIRS
from tests.lab.doctor.prove import EVERY, FAULTS, WITH_STANDINS
from tests.lab.harness import BIN, ROOT, Cluster, await_true
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
# One a plane, of those that heal in seconds.
FEW = ("second-address", "gcs-dropped", "leftover", "secret-readable", "model-byte",
       "wrong-card-file", "disabled")  # fmt: skip
CHOSEN = WITH_STANDINS if EVERY else list(FEW)


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two hosts with everything but Ray and vLLM, of which there are stand-ins."""
    if not EVERY:
        made = request.getfixturevalue("standins")
        suite.STANDINS.add(made.inventory)
        yield made
        return

    def make(lab: Lab) -> Cluster:
        made = with_standin(lab.layout.directory / "standin", lab)
        suite.STANDINS.add(made.inventory)
        return made

    yield from prove.deployed("t-doctor-s", make)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_first_line_is_the_cause_and_its_fix_heals(hosts: Cluster, name: str) -> None:
    prove.one(hosts, FAULTS[name])


@pytest.mark.parametrize("names", PAIRS if EVERY else PAIRS[:1], ids="+".join)
def test_of_two_faults_each_is_named_and_healed(hosts: Cluster, names: tuple[str, str]) -> None:
    prove.pair(hosts, [FAULTS[name] for name in names])


def test_status_says_how_a_unit_ended_last_and_why(hosts: Cluster) -> None:
    suite.await_sound(hosts, timeout_s=240)
    suite.touched(hosts)
    hosts.on("node-b", "docker kill ray-worker")
    said = json.loads(_words(hosts, "status", "--json"))
    unit = said["hosts"]["node-b"]["units"]["ray-worker.service"]
    assert "status=137" in unit["last_end"], unit
    assert unit["ended_s_ago"] < 60
    active = "systemctl is-active --quiet ray-worker && echo yes || echo no"
    await_true("a new start", lambda: hosts.on("node-b", active) == "yes\n", timeout_s=60)
    assert "ended" in _words(hosts, "status")
    suite.await_sound(hosts, timeout_s=240)


def test_watching_tells_a_fault_when_it_comes_and_when_it_goes(hosts: Cluster) -> None:
    suite.await_sound(hosts, timeout_s=240)
    fault = FAULTS["secret-readable"]
    words = [str(BIN / "vllm-cluster"), "doctor", "--watch", "1", "--plane", "security"]
    with subprocess.Popen(
        [*words, str(hosts.description)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        lines = watching.stdout
        try:
            assert any(
                ": sound" in line or "ray plane" in line for line in iter(lines.readline, "")
            )
            suite.touched(hosts)
            fault.inject(hosts)
            assert any(fault.finding in line for line in iter(lines.readline, ""))
            hosts.on("node-a", "chmod 600 /etc/vllm-cluster/secrets/api-key")
            verdict = next(line for line in iter(lines.readline, "") if line.startswith("lab: "))
            assert "security plane" in verdict  # of the block that told the fault
            verdict = next(line for line in iter(lines.readline, "") if line.startswith("lab: "))
            assert "security" not in verdict
        finally:
            watching.kill()


def _words(hosts: Cluster, *words: str) -> str:
    done = subprocess.run(
        [BIN / "vllm-cluster", *words, str(hosts.description)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout
