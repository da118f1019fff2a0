"""The network: a bridge in a namespace, a cable to each host. The machine's own has no part in it.

Every link is made inside the lab's namespaces, so neither an address nor a route nor a
firewall rule of the machine changes.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from vllm_cluster.lab import layout as names
from vllm_cluster.lab.errors import WrongValueError
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import run

_RATE = re.compile(r"[1-9][0-9]*(kbit|mbit|gbit)")


def enter(namespace: str) -> list[str]:
    """What to put before a command for it to run in a network namespace.

    Not `ip netns exec`: that gives the command a copy of all mounts of the machine, and as long
    as it runs, nothing that is unmounted is really gone.
    """
    return [shutil.which("nsenter") or "nsenter", f"--net=/run/netns/{namespace}"]


def _ip(namespace: str, lines: list[str]) -> None:
    """Several `ip` commands in one namespace, by one process."""
    run(["ip", "-n", namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")


def exists(namespace: str) -> bool:
    """Whether the namespace is there: a file alone may be left from before a reboot."""
    try:
        return (
            Path("/run/netns", namespace).stat().st_dev == Path("/proc/self/ns/net").stat().st_dev
        )
    except OSError:
        return False


def remove_namespace(namespace: str) -> bool:
    """Take a namespace away with all its links; False when there was none."""
    if not Path("/run/netns", namespace).exists():
        return False
    run(["ip", "netns", "delete", namespace])
    return True


def _add_namespace(namespace: str) -> None:
    remove_namespace(namespace)
    run(["ip", "netns", "add", namespace])


def _add_cable(layout: Layout, namespace: str, port: str, interface: list[str]) -> None:
    """One end in `namespace` (interface: its name, MAC, address), the other in the switch."""
    name, mac, address = interface
    _add_namespace(namespace)
    _ip(
        layout.switch,
        [f"link add {port} type veth peer name {name} address {mac} netns {namespace}"],
    )
    _ip(
        namespace,
        [
            "link set lo up",
            f"address add {address}/{names.SUBNET.prefixlen} brd + dev {name}",
            f"link set {name} up",
        ],
    )
    _ip(layout.switch, [f"link set {port} master {names.BRIDGE}", f"link set {port} up"])


def make_switch(layout: Layout) -> None:
    """The bridge with the control side's address, and the outsider; left alone when there."""
    if not exists(layout.switch):
        _add_namespace(layout.switch)
        _ip(
            layout.switch,
            [
                "link set lo up",
                f"link add {names.BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
                f"address add {names.CONTROL_ADDRESS}/{names.SUBNET.prefixlen} dev {names.BRIDGE}",
                f"link set {names.BRIDGE} up",
            ],
        )
    if not exists(layout.outside):
        outside = [names.OUTSIDE_INTERFACE, "02:4c:41:42:00:c8", names.OUTSIDE_ADDRESS]
        _add_cable(layout, layout.outside, "outside", outside)


def remove_nic(layout: Layout, host: HostLayout) -> None:
    """Take a host's network away.

    The cable by itself: connections that were open at a power cut keep the nameless namespace,
    and with it the cable, for minutes.
    """
    if exists(layout.switch):
        said = run(["ip", "-n", layout.switch, "-o", "link", "show", "type", "veth"]).stdout
        if host.name in (line.split()[1].split("@")[0] for line in said.splitlines()):
            _ip(layout.switch, [f"link delete {host.name}"])
    remove_namespace(host.namespace)


def make_nic(layout: Layout, host: HostLayout) -> None:
    """A host's network as it is after power-on: a fresh namespace, without rules or settings."""
    remove_nic(layout, host)
    _add_cable(layout, host.namespace, host.name, [layout.interface, host.mac, host.address])


def set_cable(layout: Layout, host: HostLayout, *, up: bool) -> None:
    """Plug the host's cable in or pull it out, at the switch. Lasts until the next power-on."""
    _ip(layout.switch, [f"link set {host.name} {'up' if up else 'down'}"])


def cable_up(layout: Layout, host: HostLayout) -> bool:
    """Whether the switch's end of the cable is up."""
    said = run(["ip", "-n", layout.switch, "-o", "link", "show", "dev", host.name]).stdout
    return "UP" in said.partition("<")[2].partition(">")[0].split(",")


def shape(layout: Layout, host: HostLayout, rate: str | None) -> None:
    """Let the cable carry `rate` (100mbit, 1gbit) each way; None for as much as it can.

    A token bucket (tc-tbf(8)): no delay or loss can be added, since that needs the netem module.
    """
    if rate is not None and not _RATE.fullmatch(rate):
        raise WrongValueError(f"rate {rate!r}: a number with kbit, mbit or gbit, as in 100mbit")
    ends = [(layout.switch, host.name), (host.namespace, layout.interface)]
    for namespace, device in ends:
        tc = ["tc", "-n", namespace, "qdisc"]
        if rate is not None:
            queue = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            run([*tc, "replace", "dev", device, "root", *queue])
        elif "tbf" in run([*tc, "show", "dev", device]).stdout:
            run([*tc, "delete", "dev", device, "root"])
