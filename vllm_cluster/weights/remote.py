"""The agent on other machines: brought there, asked, its jobs run and followed over SSH.

Weights and images share this. How a host is reached is the caller's affair: a function that makes
a command of this machine out of a shell line that shall run there as root.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_cluster.weights.build import agent_bytes, agent_version, put_script

State = dict[str, Any]
_FINAL = {"done", "failed", "stopped"}
_OTHER_VERSION = 90
_SSH_FAILED = 255
_LOST_S = 60.0  # a host may be away this long before it counts as gone
_TELL_S = 10.0
_CALL_S = 120.0


class RemoteError(Exception):
    """What failed on which host, in the words of the agent or of SSH."""


@dataclass(frozen=True)
class Remote:
    """The agent on one host. `root` is where it keeps things, `path` where it lies itself.

    `reach` makes the command that runs a shell line there as root; `say` shows a person a line.
    """

    name: str
    path: str
    root: str
    reach: Callable[[str], list[str]]
    say: Callable[[str], None]

    def install(self) -> None:
        """Have this very version of the agent at its path. Raises RemoteError."""
        digest = f"$(sha256sum < {shlex.quote(self.path)} 2>/dev/null)"
        seen = f'[ "{digest}" = "{agent_version()}  -" ] || '
        done = self._run(f"command -v python3 >/dev/null || exit 127; {seen}exit {_OTHER_VERSION}")
        if done.returncode == _OTHER_VERSION:
            done = self._run(put_script(self.path), _bytes())
        if done.returncode == 127:
            raise RemoteError(f"{self.name}: there is no python3; deploys/cluster.py installs it")
        if done.returncode:
            raise self._failure(done)

    def shell(self, line: str, stdin: bytes = b"", timeout_s: float = _CALL_S) -> str:
        """The output of a shell line. Raises RemoteError with its words."""
        done = self._run(line, stdin, timeout_s)
        if done.returncode:
            raise self._failure(done)
        return done.stdout.decode(errors="replace")

    def call(self, *words: str, stdin: str = "", timeout_s: float = _CALL_S) -> State:
        """A command of the agent, its JSON answer. Raises RemoteError with the agent's reason."""
        done = self._run(self.line(*words), stdin.encode(), timeout_s)
        if done.returncode:
            raise self._failure(done)
        return _object(self.name, done.stdout)

    def line(self, *words: str) -> str:
        """The shell line that runs a command of the agent."""
        return shlex.join(["python3", self.path, "--root", self.root, "--json", *words])

    def follow(self, key: str) -> State:
        """Show a line now and then until the job ends; how it ended. Raises RemoteError.

        A connection that breaks is made again: the job does not depend on it.
        """
        told = Told(self.say)
        lost_since: float | None = None
        while True:
            state: State = {}
            for state in self._states(key):
                lost_since = None
                told.state(state)
            if state.get("phase") in _FINAL:
                return self.call("status", "--key", key)
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > _LOST_S:
                raise RemoteError(
                    f"{self.name}: no word of {key} for {_LOST_S:.0f} s; what it has stays there, "
                    "and the next run goes on from it"
                )
            time.sleep(2.0)

    def _states(self, key: str) -> Iterator[State]:
        command = self.reach(self.line("follow", "--key", key))
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                for line in process.stdout or ():
                    state = _object(self.name, line)
                    if "have_bytes" in state:
                        yield state
            finally:
                process.kill()

    def _run(
        self, line: str, stdin: bytes = b"", timeout_s: float = _CALL_S
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                self.reach(line), input=stdin, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise RemoteError(f"{self.name}: no answer within {timeout_s:.0f} s") from None

    def _failure(self, done: subprocess.CompletedProcess[bytes]) -> RemoteError:
        words = done.stderr.decode(errors="replace").strip()
        words = words or done.stdout.decode(errors="replace").strip() or f"exit {done.returncode}"
        if done.returncode == _SSH_FAILED:
            words = f"SSH failed: {words}"
        return RemoteError(words if words.startswith(self.name) else f"{self.name}: {words}")


class Told:
    """Says how far a job is: at each change of phase, and every ten seconds in between."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._phase = ""
        self._at = 0.0

    def state(self, state: State) -> None:
        """Hear a state, perhaps say it."""
        now = time.monotonic()
        if state["phase"] == self._phase and now - self._at < _TELL_S:
            return
        self._phase, self._at = state["phase"], now
        self._say(progress(state))


def progress(state: State) -> str:
    """Bytes, rate, time left, from whom, who was passed by and why."""
    have, total = state["have_bytes"], state["total_bytes"]
    parts = [str(state["phase"])]
    if total or have:
        of = f" of {total / 2**30:.2f}" if total else ""
        parts.append(f"{have / 2**30:.2f}{of} GiB")
    elif (seconds := state.get("updated", 0) - state.get("started", 0)) >= 1:
        parts.append(f"for {seconds:.0f} s")
    if state.get("rate_bytes_s") and state["phase"] not in _FINAL:
        parts.append(f"{state['rate_bytes_s'] / 1e6:.1f} MB/s")
    if state.get("from") and state["phase"] == "fetching":
        parts.append(f"from {state['from']}")
    if state.get("left_s") and state["phase"] not in _FINAL:
        parts.append(f"{state['left_s']:.0f} s left")
    parts += [f"{name} passed by ({why})" for name, why in state.get("passed_by", {}).items()]
    parts += state.get("complaints", [])[-1:]
    if state.get("error"):
        parts.append(state["error"]["reason"])
    return ", ".join(parts)


def spread(
    remotes: Mapping[str, Remote], jobs: Mapping[str, str], holders: frozenset[str]
) -> dict[str, State | RemoteError]:
    """Run the jobs of a fan-out on all hosts at once, and wait; how each ended, by host.

    A job that runs already is attached to. One host's failure is that host's alone.
    """

    def one(name: str) -> State | RemoteError:
        try:
            how = "serve" if name in holders else "pull"
            started = remotes[name].call(how, "--job", "-", "--detach", stdin=jobs[name])
            ended = remotes[name].follow(str(started["key"]))
        except RemoteError as error:
            return error
        if ended["phase"] != "done":
            words = (ended.get("error") or {}).get("message") or f"the job {ended['phase']}"
            return RemoteError(words if words.startswith(name) else f"{name}: {words}")
        return ended

    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        return dict(zip(jobs, pool.map(one, jobs), strict=True))


def _object(name: str, data: bytes) -> State:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RemoteError(f"{name}: not an answer of the agent: {data[:200]!r}")
    return value


@cache
def _bytes() -> bytes:
    return agent_bytes()
