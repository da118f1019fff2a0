"""A fault: how it is put in, what ends it, what it must and must not cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.harness import Cluster

Deed = Callable[[Cluster], None]


@dataclass(frozen=True)
class Fault:
    """One thing that happens to a cluster that serves.

    `words`: for the table. `inject`: does it; where the fault has an end (the cable is plugged in
    again), `inject` returns then, and times count from there. `restarts`: vLLM starts afresh;
    otherwise it must go on. `limit_s`: at most this long from the fault's end to the start of
    vLLM; what is above 20 s is named in `forced`, by whose time-out it is.
    """

    name: str
    words: str
    inject: Deed
    restarts: bool = True
    limit_s: float = 20
    forced: str = ""
    proof: Deed | None = None


def on(host: str, command: str) -> Deed:
    """A root shell's command on a host that must succeed."""

    def deed(cluster: Cluster) -> None:
        cluster.on(host, command)

    return deed


def inside(host: str, container: str, pattern: str, signal: str = "KILL") -> Deed:
    """A signal to the processes of a container whose command line matches."""

    def deed(cluster: Cluster) -> None:
        # The lab host sees the processes of its containers.
        find = f"docker top {container} -eo pid,args | grep -E -- '{pattern}' | grep -v grep"
        pids = cluster.on(host, f"{find} | awk '{{print $1}}'").split()
        assert pids, f"no process {pattern} in {container} on {host}"
        cluster.on(host, f"kill -{signal} {' '.join(pids)}")

    return deed


def for_s(seconds: float, begin: Deed, end: Deed) -> Deed:
    """A fault that lasts."""

    def deed(cluster: Cluster) -> None:
        begin(cluster)
        time.sleep(seconds)
        end(cluster)

    return deed


def both(*deeds: Deed) -> Deed:
    """Several at once, or one after the other."""

    def deed(cluster: Cluster) -> None:
        for one in deeds:
            one(cluster)

    return deed


def cable(host: str, *, up: bool) -> Deed:
    """The cable plugged in or out."""

    def deed(cluster: Cluster) -> None:
        cluster.lab.host(host).link(up=up)

    return deed


def power(host: str, what: str) -> Deed:
    """`cut`, `off` or `on`. On returns when the host has booted."""

    def deed(cluster: Cluster) -> None:
        machine = cluster.lab.host(host)
        if what == "on":
            machine.power_on()
        elif what == "off":
            machine.power_off()
        else:
            machine.power_cut()

    return deed


def pause(seconds: float) -> Deed:
    """Nothing for a while."""

    def deed(_: Cluster) -> None:
        time.sleep(seconds)

    return deed
