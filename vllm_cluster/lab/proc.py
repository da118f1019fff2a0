"""Commands and processes: run one, know one again, end one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.lab.errors import LabError


def run(
    argv: Sequence[str], *, stdin: str | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return it with its text output.

    Raises LabError with the command line and the last lines of its error output when it is
    not found, exits with another code than 0, or does not end within timeout_s seconds.
    """
    line = " ".join(argv)
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(f"command not found: {argv[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"no end after {timeout_s:.0f} s: {line}") from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise LabError(f"exit code {done.returncode}: {line}\n{said}")
    return done


def background(module: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process of its own, its output appended to `log`.

    It has its own session (Ctrl-C in the terminal is not for it) and finds the package also
    where that is not installed but run from its checkout.
    """
    here = str(Path(__file__).resolve().parents[2])
    path = ":".join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    with log.open("a") as out:
        return subprocess.Popen(
            [sys.executable, "-m", f"vllm_cluster.lab.{module}", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            start_new_session=True,
        )


def wait_until(ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Ask ready() again and again; True as soon as it holds, False after timeout_s seconds."""
    end = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (proc(5), stat field 22).

    None when there is no such process or it is a zombie: it holds nothing any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """A process that can be told from a later one with the same number."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now."""
        started = start_ticks(pid)
        return None if started is None else cls(pid, started)

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return start_ticks(self.pid) == self.started

    def kill(self, number: int) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def end(self, *, grace_s: float = 3) -> None:
        """SIGTERM, and SIGKILL when it still runs after grace_s seconds."""
        self.kill(signal.SIGTERM)
        if not wait_until(lambda: not self.alive(), timeout_s=grace_s):
            self.kill(signal.SIGKILL)
            wait_until(lambda: not self.alive(), timeout_s=5)


def write_pid_file(path: Path, process: Process) -> None:
    """Record a process under its number and start time."""
    new = path.with_suffix(".new")
    new.write_text(f"{process.pid} {process.started}\n")
    new.rename(path)


def read_pid_file(path: Path) -> Process | None:
    """The process a file records, when it still runs."""
    try:
        pid, started = path.read_text().split()
    except (OSError, ValueError):
        return None
    process = Process(int(pid), int(started))
    return process if process.alive() else None


def children(pid: int) -> list[int]:
    """The numbers of a process's children."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def namespace_pids(pid: int) -> list[int]:
    """The numbers a process has, outermost namespace first (proc(5), NSpid); empty when gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    line = next((x for x in status.splitlines() if x.startswith("NSpid:")), "NSpid:")
    return [int(n) for n in line.split()[1:]]


def processes_in(netns: Path) -> Iterator[Process]:
    """Every process in a network namespace."""
    try:
        wanted = netns.stat()
    except OSError:
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            has = (entry / "ns/net").stat()
        except OSError:
            continue
        if (has.st_dev, has.st_ino) == (wanted.st_dev, wanted.st_ino):
            process = Process.of(int(entry.name))
            if process is not None:
                yield process
