"""All hosts asked at once, over OpenSSH with the description's own settings."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from vllm_cluster.control.remote import root_command, ssh_argv, ssh_to
from vllm_cluster.facts.doctor import HostFacts, parse, script
from vllm_cluster.plan import HostPlan, Plan
from vllm_cluster.spec import Cluster

# The script's own limits add up to less; beyond this a host counts as not answering.
ANSWER_TIMEOUT_S = 60
_DEEP_TIMEOUT_S = 180
SSH_FAILED = 255
_TURN_S = 0.5


@dataclass(frozen=True)
class Silence:
    """A host that could not be looked at, in ssh's own words."""

    name: str
    words: str
    command: str


@dataclass(frozen=True)
class Reply:
    """What one command on one host said."""

    code: int
    out: str
    err: str
    arrived_s: float | None = None


def run(argv: list[str], stdin: str, timeout_s: float) -> Reply:
    """Run `argv`, feed it `stdin`, note when the first line came. Never raises for a failure."""
    process = _RUNNING.start(argv)
    heard = _Heard()
    try:
        _converse(process, stdin.encode(), time.monotonic() + timeout_s, heard)
        code = process.wait()
    except TimeoutError:
        _kill(process)
        # What came until then still counts: it may say what the rest waits for.
        words = f"no answer within {timeout_s:.0f} s"
        return Reply(SSH_FAILED, _text(heard.out), words, heard.arrived_s)
    except BaseException:
        _kill(process)
        raise
    finally:
        _RUNNING.forget(process)
    return Reply(code, _text(heard.out), _text(heard.err), heard.arrived_s)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Running:
    """Every process that `run` waits for, in whatever thread, so that all can be ended at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.over = False

    def start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # ssh may have a ProxyCommand of its own, which ends with it
        )  # fmt: skip
        with self._lock:
            self._processes.add(process)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        with self._lock:
            self.over = True
            for process in self._processes:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)


_RUNNING = _Running()


@contextlib.contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that call `run`. Ctrl-C ends all that runs, instead of waiting for it."""
    _RUNNING.over = False
    threads = ThreadPoolExecutor(max_workers=max(1, workers))
    try:
        yield threads
    except KeyboardInterrupt:
        threads.shutdown(wait=False, cancel_futures=True)
        _RUNNING.end()
        raise
    finally:
        threads.shutdown(wait=not _RUNNING.over)


@dataclass
class _Heard:
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    arrived_s: float | None = None


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace")


def _converse(process: subprocess.Popen[bytes], data: bytes, end_s: float, heard: _Heard) -> None:
    """Write and read at once until both outputs end. Raises TimeoutError."""
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left_s = end_s - time.monotonic()
            # In turns: who leaves ssh's session may hold its outputs open after an interrupt.
            ready = selector.select(max(0.0, min(left_s, _TURN_S)))
            if _RUNNING.over or (not ready and time.monotonic() >= end_s):
                raise TimeoutError
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    data = _write(process, selector, data)
                    continue
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    heard.arrived_s = heard.arrived_s or time.time()
                    heard.out += chunk
                else:
                    heard.err += chunk


def _write(
    process: subprocess.Popen[bytes], selector: selectors.BaseSelector, data: bytes
) -> bytes:
    assert process.stdin is not None  # noqa: S101
    try:
        data = data[os.write(process.stdin.fileno(), data[:65536]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        data = b""
    if not data:
        selector.unregister(process.stdin)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    return data


def everywhere(
    cluster: Cluster, hosts: list[HostPlan], scripts: dict[str, str], timeout_s: float
) -> dict[str, Reply]:
    """Run each host's bash script as root, on all hosts at once."""
    return at_addresses(cluster, {host.name: host.ssh for host in hosts}, scripts, timeout_s)


def at_addresses(
    cluster: Cluster, addresses: dict[str, str], scripts: dict[str, str], timeout_s: float
) -> dict[str, Reply]:
    """The same by the addresses that SSH dials; needs no plan."""

    def one(name: str) -> Reply:
        argv = [*ssh_to(cluster, addresses[name]), root_command(cluster, "bash -s")]
        return run(argv, scripts[name], timeout_s)

    with pool(len(addresses)) as threads:
        return dict(zip(addresses, threads.map(one, addresses), strict=True))


@dataclass(frozen=True)
class Look:
    """What a look at the cluster brought: facts of the hosts that answered, and the silent ones."""

    facts: dict[str, HostFacts]
    silent: dict[str, Silence]
    raw: dict[str, str]
    salt: str = ""
    seconds: float = 0.0


def look(
    cluster: Cluster,
    plan: Plan,
    *,
    only: tuple[str, ...] = (),
    log_lines: int = 0,
    deep: bool = False,
    keyless: bool = True,
) -> Look:
    """Look at `only` these hosts (default: all) in one round trip each."""
    began_s = time.monotonic()
    hosts = [host for host in plan.hosts.values() if not only or host.name in only]
    salt = secrets.token_hex(16)
    scripts = {
        h.name: script(plan, h, salt=salt, log_lines=log_lines, deep=deep, keyless=keyless)
        for h in hosts
    }
    limit_s = ANSWER_TIMEOUT_S + (_DEEP_TIMEOUT_S if deep else 0)
    replies = everywhere(cluster, hosts, scripts, limit_s)
    facts: dict[str, HostFacts] = {}
    silent: dict[str, Silence] = {}
    for host in hosts:
        reply = replies[host.name]
        words = reply.err.strip() or reply.out.strip()[:300] or f"ssh ended with {reply.code}"
        found = _read(host.name, reply)
        if found is not None:
            facts[host.name] = found
        else:
            command = " ".join(ssh_argv(cluster, host))
            silent[host.name] = Silence(host.name, words, command)
    raw = {name: reply.out for name, reply in replies.items()}
    return Look(facts, silent, raw, salt, time.monotonic() - began_s)


def _read(name: str, reply: Reply) -> HostFacts | None:
    """What the host said; None where that is nothing, or broke off so that it cannot be read."""
    if reply.arrived_s is None:
        return None
    try:
        found = parse(name, reply.out, arrived_s=reply.arrived_s)
    except (ValueError, LookupError) as error:
        # Half a number, half a line: whatever else stands there is no better.
        cut = HostFacts(name, complete=False, clock_s=reply.arrived_s, ended="its answer broke off")
        return replace(cut, words=reply.err.strip()[:300] or f"{type(error).__name__}: {error}")
    if not found.clock_s:
        return None
    if not found.complete:
        return replace(found, words=reply.err.strip()[:300])
    if found.root and not found.units:
        return replace(
            found, complete=False, ended="systemd gave no answer", words="systemctl show: nothing"
        )
    return found
