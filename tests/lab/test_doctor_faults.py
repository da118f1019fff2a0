"""Faults put in on purpose: doctor's first line is the cause, and its fix heals.

A few by default; all of them, alone and in pairs, with FAULTS=all (`make test-doctor`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.conftest import with_standin
from tests.lab.doctor import prove, suite
from tests.lab.doctor.pairs import PAIRS
from tests.lab.doctor.prove import EVERY, FAULTS, WITH_STANDINS
from tests.lab.harness import Cluster
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
