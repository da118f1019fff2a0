"""Settings of the kernel, each with its reason, weighed against what others set on a host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from vllm_cluster.plan.model import PortUse

FILE = "/etc/sysctl.d/99-vllm-cluster.conf"
RESERVED = "net.ipv4.ip_local_reserved_ports"

# at least: a host that has more keeps it. exactly: unless somebody else chose for this host.
# together: the host's own list and ours.
Kind = Literal["at least", "exactly", "together"]

_SOCKET_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Setting:
    """One setting: its value, how it meets another's, and why it is needed."""

    name: str
    value: str
    kind: Kind
    reason: str


@dataclass(frozen=True)
class KernelState:
    """A host's kernel. `values` are in force; a name that this kernel does not know is missing.

    `elsewhere` are values in files of others, the last that counts; what packages bring in
    /usr/lib is nobody's choice. `time_services` maps what is installed to its state.
    """

    values: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    shm_bytes: int = 0
    time_services: dict[str, str] = field(default_factory=dict)
    synchronized: bool = False
    container: bool = False


def settings(
    ports: Iterable[PortUse], overrides: Mapping[str, str | int | None]
) -> tuple[Setting, ...]:
    """What the cluster wants; `overrides` replace, add, or (None) leave one to the host."""
    buffers = f"4096 131072 {_SOCKET_BYTES}"
    wanted = [
        Setting(
            "net.core.somaxconn", "4096", "at least",
            "Connections that wait until vLLM or Ray accepts them: a burst of clients is not "
            "refused.",
        ),
        Setting(
            "net.core.rmem_max", str(_SOCKET_BYTES), "at least",
            "What a socket of gloo or NCCL may ask for: at 25 Gbit/s and 1 ms, 3 MB are on the "
            "way; several streams and a busy reader need a multiple.",
        ),
        Setting(
            "net.core.wmem_max", str(_SOCKET_BYTES), "at least", "The same for what is sent."
        ),
        Setting(
            "net.ipv4.tcp_rmem", buffers, "at least",
            "How far the kernel lets the buffers of a TCP connection grow by itself: at 25 Gbit/s "
            "and 1 ms, 3 MB are on the way.",
        ),
        Setting("net.ipv4.tcp_wmem", buffers, "at least", "The same for what is sent."),
        Setting(
            RESERVED, reserved(ports), "together",
            "No client of this host takes a port that Ray or vLLM listens on.",
        ),
        Setting(
            "vm.swappiness", "10", "exactly",
            "Ray's object store and the buffers between GPU and network lie in memory that may "
            "be swapped; file pages of the weights should go first.",
        ),
        Setting(
            "kernel.numa_balancing", "0", "exactly",
            "Moving pages between sockets stalls the threads that feed the GPUs; memory that is "
            "registered with a GPU or a network card cannot move anyway.",
        ),
    ]  # fmt: skip
    chosen = {s.name: s for s in wanted}
    for name, value in overrides.items():
        chosen.pop(name, None)
        if value is not None:
            reason = "The description says so (kernel.sysctl)."
            chosen[name] = Setting(name, str(value), "exactly", reason)
    return tuple(chosen.values())


def reserved(ports: Iterable[PortUse]) -> str:
    """Every port that we listen on, as the kernel writes such lists."""
    return joined((use.first, use.last) for use in ports)


def joined(ranges: Iterable[tuple[int, int]]) -> str:
    """`80,6379-6387`: ranges merged and in order."""
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in merged)


def parsed(text: str) -> list[tuple[int, int]]:
    """The ranges of such a list. Raises ValueError for anything else."""
    ranges = []
    for part in text.replace(" ", "").split(","):
        if part:
            first, _, last = part.partition("-")
            ranges.append((int(first), int(last or first)))
    return ranges


def resolved(wanted: Iterable[Setting], state: KernelState, explicit: set[str]) -> list[Setting]:
    """`wanted` as this host shall have it: with what others set there, without what it lacks.

    `explicit` names come from the description and outrank what others chose.
    """
    result = []
    for setting in wanted:
        other = state.elsewhere.get(setting.name)
        if setting.name not in state.values:
            continue
        if setting.kind == "exactly" and other is not None and setting.name not in explicit:
            continue
        value = setting.value if other is None else _together(setting, other)
        result.append(Setting(setting.name, value, setting.kind, setting.reason))
    return result


def _together(setting: Setting, other: str) -> str:
    if setting.kind == "together":
        return joined([*parsed(setting.value), *parsed(other)])
    if setting.kind == "at least":
        return _most(setting.value, other)
    return setting.value


def _most(one: str, other: str) -> str:
    """The larger of two values, number by number."""
    pairs = zip(one.split(), other.split(), strict=False)
    try:
        return " ".join(str(max(int(a), int(b))) for a, b in pairs)
    except ValueError:
        return one


def unmet(resolved_settings: Iterable[Setting], state: KernelState) -> list[Setting]:
    """Those that are not in force."""
    return [s for s in resolved_settings if not _met(s, state.values.get(s.name, ""))]


def _met(setting: Setting, value: str) -> bool:
    have, want = value.split(), setting.value.split()
    if have == want:
        return True
    if setting.kind == "together":
        return joined(parsed(value)) == joined(parsed(setting.value))
    if setting.kind == "at least":
        return " ".join(have) == _most(" ".join(have), setting.value)
    return False
