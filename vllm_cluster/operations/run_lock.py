"""The lock of a run, taken on all of its hosts before anything is changed on one of them."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import click
from paramiko import Channel, SSHException
from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State, StateStage
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.context import host

from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan.run_lock import BEAT_S, Bearer, Busy, Held, answer, holder, refusal

_ANSWER_TIMEOUT_S = 30


@dataclass
class _Run:
    """The locks of one run of pyinfra, by host; `reason`: why there are none."""

    # pyinfra has replaced the standard library's threads by gevent's.
    mutex: threading.Lock = field(default_factory=threading.Lock)
    tried: bool = False
    reason: str = ""
    channels: dict[str, Channel] = field(default_factory=dict)


_runs: WeakKeyDictionary[State, _Run] = WeakKeyDictionary()


@operation()
def held(bearer: Bearer) -> Generator[StringCommand, None, None]:
    """Take the lock on every host of this run, or refuse on all of them.

    Nothing changes on a host by it, and a dry run takes none: to pyinfra it is no change.
    """
    if host.state.current_stage == StateStage.Execute:
        reason = _taken(host.state, bearer)
        if reason:
            yield refuse(reason)
            return
    host.noop("no other run is under way")


def _taken(state: State, bearer: Bearer) -> str:
    """Take all locks, once a run, whichever host comes first; why not, or nothing."""
    run = _runs.setdefault(state, _Run())
    with run.mutex:
        if not run.tried:
            run.tried = True
            run.reason = _take_all(state, run, bearer)
            if run.channels:
                threading.Thread(target=_beat, args=(state, run), daemon=True).start()
    return run.reason


def _take_all(state: State, run: _Run, bearer: Bearer) -> str:
    """The first host's lock, then the others' at once: of two runs that begin together one wins."""
    hosts = [each for each in state.inventory if each in state.active_hosts]
    for batch in (hosts[:1], hosts[1:]):
        with ThreadPoolExecutor() as pool:
            answers = pool.map(lambda each: _take(each, bearer), batch)
            found = dict(zip([each.name for each in batch], answers, strict=True))
        run.channels |= {n: each for n, each in found.items() if isinstance(each, Channel)}
        busy = {n: each for n, each in found.items() if isinstance(each, Busy)}
        words = [f"{n}: {each}" for n, each in found.items() if isinstance(each, str)]
        if busy or words:
            _release(run)
            return refusal(busy) if busy else f"the lock cannot be taken: {'; '.join(words)}"
    return ""


def _release(run: _Run) -> None:
    for channel in run.channels.values():
        channel.close()
    run.channels.clear()


def _take(each: Host, bearer: Bearer) -> Channel | Busy | str | None:
    """The channel that holds the lock, who holds it, or words of an error.

    None where this run was started by the one that holds it, and for hosts without SSH.
    """
    connector = each.connector
    if not isinstance(connector, SSHConnector) or connector.client is None:
        return None
    transport = connector.client.get_transport()
    if transport is None:
        return "no connection"
    command = holder(bearer)
    if each.data.get("_sudo"):
        command = f"sudo -n {command}"
    if each.state.print_input:
        click.echo(f"{each.print_prefix}>>> {command}", err=True)
    try:
        channel = transport.open_session(timeout=_ANSWER_TIMEOUT_S)
        channel.settimeout(_ANSWER_TIMEOUT_S)
        # Through the user's shell, which may be none that knows these words.
        channel.exec_command(f"exec sh -c {shlex.quote(command)}")
        said = _first_answer(channel)
    except (OSError, SSHException) as error:
        return str(error) or type(error).__name__
    if isinstance(said, Held):
        return channel
    channel.close()
    if isinstance(said, Busy) and said.bearer is not None and said.bearer.run == bearer.run:
        return None
    return said


def _first_answer(channel: Channel) -> Held | Busy | str:
    for line in channel.makefile("r"):
        said = answer(line if isinstance(line, str) else line.decode(errors="replace"))
        if said is not None:
            return said
    words = channel.makefile_stderr("r").read()
    text = words if isinstance(words, str) else words.decode(errors="replace")
    return text.strip() or "no words"


def _beat(state: State, run: _Run) -> None:
    """Feed the holders. A lock that was lost while its host can be reached ends this process.

    That is a machine that slept: by now another run may be at work, and this one must not go on.
    A host whose connection is gone is out of this run by itself.
    """
    while run.channels:
        time.sleep(BEAT_S)
        for name, channel in list(run.channels.items()):
            if _fed(channel):
                continue
            del run.channels[name]
            transport = channel.get_transport()
            if transport.is_active() and state.current_stage == StateStage.Execute:
                _end(name)


def _fed(channel: Channel) -> bool:
    try:
        while channel.recv_ready():
            channel.recv(4096)
        if channel.exit_status_ready() or channel.closed:
            return False
        channel.sendall(b"\n")
    except (OSError, SSHException):
        return False
    return True


def _end(name: str) -> None:
    now = time.strftime("%H:%M:%S")
    click.echo(
        f"{now} [{name}] the lock of this run is lost: this machine was silent for too long, and "
        "another run may have begun. This one ends here; the next finishes it.",
        err=True,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
