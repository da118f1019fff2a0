"""The kernel's settings, the host's shared memory, its clock."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.kernel import ClockOffset, KernelFact, Offset
from vllm_cluster.operations import files, owned, packages
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan import kernel
from vllm_cluster.plan.kernel import KernelState, Setting

_TIMESYNCD = "systemd-timesyncd"
_MIB = 2**20
# The kernel rounds sizes of memory up to whole pages; the largest of any machine.
_PAGE_BYTES = 2**16

Commands = Generator[StringCommand, None, None]


@dataclass(frozen=True)
class Tuning:
    """What a host's kernel shall have.

    `text` writes the file of `settings`; `explicit` are those that the description names.
    `time_service` lets one be installed where there is none. `shm_bytes` is what the containers
    shall see; `host_shm` says that they see the host's own. `servers`: the description names
    time servers, which systemd-timesyncd asks.
    """

    settings: tuple[Setting, ...]
    explicit: frozenset[str]
    text: Callable[[list[Setting]], str]
    files: dict[str, File]
    shm_bytes: int
    host_shm: bool
    time_service: bool
    servers: bool = False


@operation()
def tuned(wanted: Tuning) -> Commands:
    """Bring settings in force, now and at every boot, without taking from others what they set."""
    state = host.get_fact(KernelFact, names=[setting.name for setting in wanted.settings])
    words = _obstacle(state, wanted)
    if words:
        yield refuse(words)
        return
    try:
        settings = kernel.resolved(wanted.settings, state, set(wanted.explicit))
        missing = kernel.unmet(settings, state)
    except ValueError as error:
        yield refuse(f"{kernel.RESERVED} of this host cannot be read: {error}")
        return
    place: dict[str, File | Directory] = {kernel.FILE: File(wanted.text(settings)), **wanted.files}
    yield from files.place._inner(wanted=place)
    # The unit of it runs already where somebody changed the size since.
    if wanted.host_shm and not 0 <= state.shm_bytes - wanted.shm_bytes < _PAGE_BYTES:
        host.log(f"/dev/shm has {state.shm_bytes} bytes, not {wanted.shm_bytes}")
        record = owned.first("shm", "/dev/shm", str(state.shm_bytes))
        yield StringCommand(f"{record} && mount -o remount,size={wanted.shm_bytes} /dev/shm")
    for setting in missing:
        have = state.values[setting.name]
        host.log(f"{setting.name} is {have or 'empty'}, not {setting.value}")
        path = f"/proc/sys/{setting.name.replace('.', '/')}"
        yield StringCommand(
            f"{owned.first('sysctl', setting.name, have)} && "
            f"{owned.last('set', setting.name, setting.value)} && "
            f"printf '%s\\n' {shlex.quote(setting.value)} > {path}"
        )
    yield from _time(state, wanted)


def _obstacle(state: KernelState, wanted: Tuning) -> str:
    if wanted.shm_bytes > state.memory_bytes:
        return (
            f"memory.shm is {wanted.shm_bytes // _MIB} MiB, and this host has "
            f"{state.memory_bytes // _MIB} MiB of memory; what is written there counts as memory"
        )
    others = [n for n, how in state.time_services.items() if how == "active" and n != _TIMESYNCD]
    if wanted.servers and others:
        return (
            f"{others[0]} sets this host's clock, and clock.servers are for {_TIMESYNCD}; name "
            f"them in the configuration of {others[0]} and leave clock.servers out, or remove it"
        )
    return ""


def _time(state: KernelState, wanted: Tuning) -> Commands:
    """A clock that somebody sets. What runs already stays, whichever it is."""
    running = [name for name, active in state.time_services.items() if active == "active"]
    if running and not state.synchronized:
        host.log_styled(f"{running[0]} runs, but no time server has answered yet", fg="yellow")
    if running or not wanted.time_service:
        return
    installed = list(state.time_services)
    if not installed:
        host.log("nothing sets this host's clock")
        yield from packages.install([_TIMESYNCD])
    # In a container the clock is the host's, and systemd does not start what would set it.
    if not state.container:
        name = installed[0] if installed else _TIMESYNCD
        before = owned.first("unit", f"{name}.service", "disabled inactive")
        yield StringCommand(f"{before} && systemctl enable --quiet --now {name}.service")


_OFFSETS: dict[str, Offset] = {}


@operation()
def clock_read() -> Commands:
    """Ask the host for the time. `clocks_agree` compares, once all hosts have been asked."""
    offset = host.get_fact(ClockOffset)
    _OFFSETS[host.name] = offset
    host.noop(f"the clock is {offset.seconds:+.3f} s ahead of this machine's")
    yield from ()


@operation()
def clocks_agree(head: str, max_offset_s: float) -> Commands:
    """Refuse where a clock is further from the head's than `max_offset_s`.

    Tokens and leases expire by the clock, and logs of two hosts are read side by side. Compared
    with each other, not with this machine's, which may itself be wrong.
    """
    here, there = _OFFSETS.get(host.name), _OFFSETS.get(head)
    if here is None or there is None:
        host.noop("the head was not asked (--limit)")
        return
    apart_s = here.seconds - there.seconds
    doubt_s = here.uncertainty_s + there.uncertainty_s
    if abs(apart_s) - doubt_s > max_offset_s:
        yield refuse(
            f"the clock is {apart_s:+.1f} s off that of {head} (up to {max_offset_s} s are "
            "accepted); set it, and look why nothing does (`timedatectl timesync-status`)"
        )
        return
    host.noop(f"the clock is {apart_s:+.3f} s off the head's")
