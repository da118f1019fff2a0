"""Puts faults into a sound cluster and holds doctor to what it must say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.doctor import faults_host, faults_services, faults_storage, faults_versions, suite
from tests.lab.doctor.fault import Fault
from tests.lab.harness import Cluster
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

EVERY = os.environ.get("FAULTS") == "all"
FAULTS = {
    fault.name: fault
    for faults in (faults_host, faults_storage, faults_versions, faults_services)
    for fault in faults.FAULTS
}
WITH_STANDINS = [name for name, fault in FAULTS.items() if not fault.real]
ON_REAL = [name for name, fault in FAULTS.items() if fault.real or fault.real_consequence]


def deployed(name: str, make: Callable[[Lab], Cluster]) -> Iterator[Cluster]:
    """A sound cluster on a lab of that name, which KEEP=1 leaves for the next run."""
    lab = Lab.up(2, name=lab_name(name))
    try:
        made = make(lab)
        said = suite.doctor(made)
        if said.findings or not said.deployed:
            made.apply()
        suite.await_sound(made, timeout_s=600)
        yield made
    finally:
        if not os.environ.get("KEEP"):
            lab.down()


def row_name(fault: Fault, *, real: bool) -> str:
    """A fault's name among the results; one that is put into both has two."""
    return f"{fault.name}@real" if real and not fault.real else fault.name


def one(hosts: Cluster, fault: Fault) -> None:
    """The first line names the fault, also when its consequence is there, and its fix heals."""
    real = hosts.inventory not in suite.STANDINS
    name = row_name(fault, real=real)
    if suite.proven(name):
        pytest.skip("proven on this commit")
    suite.await_sound(hosts, timeout_s=fault.heal_timeout_s)
    suite.forget_starts(hosts)
    cluster = _described(hosts, fault)
    try:
        suite.touched(hosts)
        fault.inject(cluster)
        began = time.monotonic()
        said = suite.await_said(cluster, fault.finding if fault.awaited else "")
        assert_first(said, fault)
        noticed_s = time.monotonic() - began
        consequence = fault.real_consequence if real and not fault.real else fault.consequence
        if consequence:
            said = suite.await_said(cluster, consequence)
            assert_first(said, fault)
        if fault.by_hand is None:
            said = suite.await_deed(cluster, said)
            assert_first(said, fault)
        first = said.first
        assert first is not None
        began = time.monotonic()
        suite.apply_fix(cluster, fault, first)
        suite.await_sound(cluster, fault.heal_timeout_s)
        healed_s = time.monotonic() - began
    except AssertionError:
        _whole_again(hosts, [fault])
        raise
    finally:
        suite.touched(hosts)
        fault.tidy(cluster)
    explained = sorted({f["id"] for f in said.findings if f["caused_by"]})
    suite.keep(name, {
        "symptom": fault.symptom, "plane": first["plane"], "host": first["host"],
        "id": first["id"], "found": first["found"], "evidence": first["evidence"],
        "fix": [f"{step['on']}: {step['command']}" for step in first["fix"]],
        "explains": explained, "noticed_s": round(noticed_s, 1), "healed_s": round(healed_s),
        "real": real, "standin": fault.standin,
    })  # fmt: skip


def _whole_again(cluster: Cluster, faults: list[Fault]) -> None:
    """What one row leaves broken shall not fail those behind it."""
    for fault in faults:
        fault.tidy(cluster)
    done = cluster.pyinfra("-y")
    print(f"after the failure, a deploy: exit {done.returncode}")


def _described(hosts: Cluster, fault: Fault) -> Cluster:
    """The cluster with what the fault's description has beyond the suite's."""
    if fault.described is None:
        return hosts
    made = fault.described(hosts)
    if hosts.inventory in suite.STANDINS:
        suite.STANDINS.add(made.inventory)
    suite.touched(made)
    return made


def assert_first(said: suite.Said, fault: Fault) -> None:
    """Doctor fails, and its first line is the cause."""
    first = said.first
    assert first is not None
    assert (first["id"], first["host"]) == (fault.finding, fault.host), said.names()
    assert first["plane"] == fault.plane
    assert said.code in {1, 2}


def pair(cluster: Cluster, faults: list[Fault]) -> None:
    """Both are named as causes, one after the other comes first, and each fix heals its own."""
    name = "+".join(fault.name for fault in faults)
    if suite.proven(name):
        pytest.skip("proven on this commit")
    timeout_s = sum(fault.heal_timeout_s for fault in faults)
    suite.await_sound(cluster, timeout_s)
    suite.forget_starts(cluster)
    order = []
    try:
        suite.touched(cluster)
        for fault in faults:
            fault.inject(cluster)
        said = suite.await_said(cluster, faults[0].finding)
        said = said if said.has(faults[1].finding) else suite.await_said(cluster, faults[1].finding)
        left = {(fault.finding, fault.host): fault for fault in faults}
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
    except AssertionError:
        _whole_again(cluster, faults)
        raise
    finally:
        suite.touched(cluster)
        for fault in faults:
            fault.tidy(cluster)
    real = cluster.inventory not in suite.STANDINS
    names = [fault.name for fault in faults]
    suite.keep(name, {"pair": names, "order": order, "real": real})


def _after(cluster: Cluster, key: tuple[str, str], timeout_s: float) -> suite.Said:
    """Doctor's words once the finding of `key` is gone."""
    began = time.monotonic()
    while True:
        said = suite.doctor(cluster)
        if not any((f["id"], f["host"]) == key for f in said.findings):
            return said
        assert time.monotonic() - began < timeout_s, said.names()
