"""What answers where a host is expected, looked at without trusting it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vllm_cluster.control.remote import root_command, ssh_argv
from vllm_cluster.doctor.reach import run
from vllm_cluster.plan import HostPlan, paths
from vllm_cluster.spec import Cluster

POLL_S = 3.0
_TELL_S = 30.0
_ANSWER_TIMEOUT_S = 20.0
Say = Callable[[str], None]

_ASK = f"if [ -e {paths.CONFIG} ]; then echo deployed; else echo bare; fi"


@dataclass(frozen=True)
class Seen:
    """What answered: its key as `TYPE BASE64` (empty: nothing did), what is there, SSH's words.

    `state` is closed where the user or root's rights are refused, as by an installer's own sshd.
    """

    key: str
    state: Literal["silent", "closed", "bare", "deployed"]
    words: str = ""


def look(cluster: Cluster, host: HostPlan) -> Seen:
    """Log in and ask for one file. The key is written nowhere, and nothing is sent but the ask."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "key"
        unknown = ["-o", f"UserKnownHostsFile={file}", "-o", "GlobalKnownHostsFile=/dev/null"]
        unknown += ["-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=no"]
        unknown += ["-o", "UpdateHostKeys=no", "-o", "ForwardAgent=no", "-o", "ControlPath=none"]
        program, *rest = ssh_argv(cluster, host)  # the first value of an option counts
        reply = run(
            [program, *unknown, *rest, root_command(cluster, "sh -s")], _ASK, _ANSWER_TIMEOUT_S
        )
        key = _learned(file)
    words = (reply.err.strip().splitlines() or [f"exit code {reply.code}"])[-1]
    said = reply.out.strip()
    if said == "bare":
        return Seen(key, "bare")
    if said == "deployed":
        return Seen(key, "deployed")
    return Seen(key, "closed" if key else "silent", words)


def _learned(file: Path) -> str:
    try:
        words = file.read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return ""
    return " ".join(words[1:3])


def awaited(
    cluster: Cluster, host: HostPlan, ready: Callable[[Seen], str], say: Say, timeout_s: float
) -> Seen | None:
    """Look until `ready` finds nothing to wait for; None after `timeout_s`.

    `ready` gives what is waited for, empty when it is there. Changes are said at once, and every
    half minute that it still waits.
    """
    began = told = time.monotonic()
    before = ""
    while True:
        seen = look(cluster, host)
        waits = ready(seen)
        if not waits:
            return seen
        now = time.monotonic()
        if waits != before or now - told >= _TELL_S:
            say(f"[{now - began:5.0f} s] waiting for {host.name}: {waits}")
            before, told = waits, now
        if now - began > timeout_s:
            return None
        time.sleep(POLL_S)
