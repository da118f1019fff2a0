"""Faults put in on purpose: doctor's first line is the cause, and its fix heals.

A few by default; all of them, alone and in pairs, with FAULTS=all (`make test-doctor`), after
which the table docs/doctor-faults.md is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.lab.doctor import faults_host, faults_services, suite
from tests.lab.doctor.fault import Fault
from tests.lab.doctor.pairs import PAIRS
from tests.lab.doctor.table import write_table
from tests.lab.harness import Cluster, describe
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
NAME = "t-doctor"
EVERY = os.environ.get("FAULTS") == "all"
FAULTS = {fault.name: fault for fault in (*faults_host.FAULTS, *faults_services.FAULTS)}
# One a plane, those that heal in seconds: the whole takes an hour.
FEW = ("second-address", "gcs-dropped", "leftover", "secret-readable", "model-byte",
       "wrong-card-file", "disabled")  # fmt: skip
CHOSEN = list(FAULTS) if EVERY else list(FEW)
SECONDS_FOR_TWO_HOSTS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of two lab hosts that serves; kept for the next run with KEEP=1."""
    lab = Lab.up(2, name=NAME)
    try:
        made = describe(lab, lab.layout.directory)
        if not suite.doctor(made).deployed:
            made.apply()
        suite.await_sound(made, timeout_s=300)
        yield made
    finally:
        if not os.environ.get("KEEP"):
            lab.down()


def test_a_sound_cluster_has_no_finding_and_is_looked_at_in_seconds(cluster: Cluster) -> None:
    said = min((suite.doctor(cluster) for _ in range(3)), key=lambda said: said.seconds)
    assert said.findings == []
    assert said.code == 0
    assert said.seconds < SECONDS_FOR_TWO_HOSTS


@pytest.mark.parametrize("name", CHOSEN)
def test_the_first_line_is_the_cause_and_its_fix_heals(cluster: Cluster, name: str) -> None:
    fault = FAULTS[name]
    suite.await_sound(cluster, timeout_s=fault.heal_timeout_s)
    try:
        suite.touched(cluster)
        fault.inject(cluster)
        said = suite.await_said(cluster, "")
        assert_first(said, fault)
        if fault.consequence:
            said = suite.await_said(cluster, fault.consequence)
            assert_first(said, fault)
        first = said.first
        assert first is not None
        began = time.monotonic()
        suite.apply_fix(cluster, fault, first)
        suite.await_sound(cluster, fault.heal_timeout_s)
    finally:
        fault.tidy(cluster)
    explained = sorted({f["id"] for f in said.findings if f["caused_by"]})
    suite.keep(name, {
        "symptom": fault.symptom, "plane": first["plane"], "host": first["host"],
        "id": first["id"], "found": first["found"], "evidence": first["evidence"],
        "fix": [f"{step['on']}: {step['command']}" for step in first["fix"]],
        "explains": explained, "healed_s": round(time.monotonic() - began),
    })  # fmt: skip


def assert_first(said: suite.Said, fault: Fault) -> None:
    """Doctor fails, and its first line is the cause."""
    first = said.first
    assert first is not None
    assert (first["id"], first["host"]) == (fault.finding, fault.host), said.names()
    assert first["plane"] == fault.plane
    assert said.code in {1, 2}


@pytest.mark.parametrize("names", PAIRS if EVERY else PAIRS[:1], ids="+".join)
def test_of_two_faults_each_is_named_and_healed(cluster: Cluster, names: tuple[str, str]) -> None:
    pair = [FAULTS[name] for name in names]
    timeout_s = sum(fault.heal_timeout_s for fault in pair)
    suite.await_sound(cluster, timeout_s)
    order = []
    try:
        suite.touched(cluster)
        for fault in pair:
            fault.inject(cluster)
        left = {(fault.finding, fault.host): fault for fault in pair}
        said = suite.await_said(cluster, pair[0].finding)
        said = said if said.has(pair[1].finding) else suite.await_said(cluster, pair[1].finding)
        while left:
            first = said.first
            assert first is not None, "the second fault was healed with the first"
            key = (first["id"], first["host"])
            assert key in left, said.names()
            order.append(first["id"])
            suite.apply_fix(cluster, left.pop(key), first)
            said = _after(cluster, key, timeout_s)
            # One deploy may heal both.
            left = {k: f for k, f in left.items() if said.has(k[0])}
        suite.await_sound(cluster, timeout_s)
    finally:
        for fault in pair:
            fault.tidy(cluster)
    suite.keep("+".join(names), {"pair": list(names), "order": order})


def _after(cluster: Cluster, key: tuple[str, str], timeout_s: float) -> suite.Said:
    """Doctor's words once the finding of `key` is gone."""
    began = time.monotonic()
    while True:
        said = suite.doctor(cluster)
        if not any((f["id"], f["host"]) == key for f in said.findings):
            return said
        assert time.monotonic() - began < timeout_s, said.names()


@pytest.mark.skipif(not EVERY, reason="the table is written from all faults: FAULTS=all")
def test_the_table_is_written() -> None:
    write_table([*FAULTS], PAIRS)
