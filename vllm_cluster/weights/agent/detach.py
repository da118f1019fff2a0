"""Let a job outlive the connection that started it, and find it again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import Layout, lock_holder
from vllm_cluster.weights.agent.state import FINAL, read_state

_START_S = 20.0
_SYSTEMD = Path("/run/systemd/system")


def unit_name(key: str) -> str:
    return "vllm-cluster-weights-" + re.sub(r"[^A-Za-z0-9.-]", "-", key)


def start(layout: Layout, key: str, arguments: list[str]) -> dict[str, Any]:
    """Run this agent with `arguments` on its own; return once it holds the job.

    A job that runs already is attached to instead: `attached` is true in the answer. A transient
    unit that is killed comes back (Restart=on-abnormal) and goes on where it was; one that fails
    in words stays down. Without systemd a session of its own does, and nobody restarts it.
    """
    attached = lives(layout, key)
    if not attached:
        _begin(layout, key, arguments)
    deadline = monotonic() + _START_S
    while monotonic() < deadline:
        state = read_state(layout, key)
        if state is not None and (state["running"] or state["phase"] in FINAL):
            return {**state, "attached": attached}
        sleep(0.05)
    raise WeightsError(
        f"{key} did not start within {_START_S:g} s; see journalctl -u {unit_name(key)}"
    )


def lives(layout: Layout, key: str) -> bool:
    """Whether a process holds the job, or its unit is about to start one again after a kill."""
    if lock_holder(layout, key) is not None:
        return True
    if not _SYSTEMD.is_dir():
        return False
    done = subprocess.run(
        ["systemctl", "show", "--property=ActiveState", "--value", unit_name(key)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() in {"active", "activating", "reloading"}


def _begin(layout: Layout, key: str, arguments: list[str]) -> None:
    command = [sys.executable, str(Path(sys.argv[0]).resolve()), *arguments]
    with suppress(FileNotFoundError):  # what an earlier run said would pass for this one's words
        (layout.jobs / f"{key}.json").unlink()
    if _SYSTEMD.is_dir():
        _start_unit(key, command)
    else:
        log = (layout.jobs / f"{key}.log").open("ab")
        with log:
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def _start_unit(key: str, command: list[str]) -> None:
    properties = [
        "Restart=on-abnormal",
        "RestartSec=2",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=20",
        "LimitNOFILE=65536",
    ]
    argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit_name(key)}"]
    argv += [f"--property={text}" for text in properties]
    argv += [f"--description=Weights: {key}", "--", *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WeightsError(f"systemd-run: {done.stderr.strip()}")


def follow(layout: Layout, key: str) -> Iterator[dict[str, Any]]:
    """Yield the job's state about once a second, its end last. WeightsError: no such job.

    A job whose unit is about to come back after a kill is not at its end.
    """
    quiet = 0
    while True:
        state = read_state(layout, key)
        if state is None:
            raise WeightsError(f"no job {key} on this host")
        yield state
        if state["phase"] in FINAL:
            return
        quiet = 0 if state["running"] else quiet + 1
        if quiet > 5:
            return
        sleep(1.0)


def stop(layout: Layout, key: str) -> bool:
    """Ask the job to end, wait until it has. False when none runs."""
    holder = lock_holder(layout, key)
    if holder is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(holder, signal.SIGTERM)
    deadline = monotonic() + _START_S
    while lock_holder(layout, key) == holder:
        if monotonic() > deadline:
            raise WeightsError(f"{key}: process {holder} does not end")
        sleep(0.05)
    return True
