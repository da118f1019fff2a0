"""Jobs that run on their own on the hosts, watched until they are over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_cluster.placing.remote import HostError, Remote, on_all
from vllm_cluster.placing.show import Show

# A host that has all goes on serving those that have not; for the deploy it is done.
PLACED = ("serving", "done")
_OVER = (*PLACED, "failed", "stopped", "interrupted")
_SILENCE_S = 90.0
_AGAIN_S = 2.0

State = Mapping[str, Any]


def follow(
    remotes: Sequence[Remote], keys: Mapping[str, str], show: Show
) -> tuple[dict[str, State], dict[str, HostError]]:
    """The last state of each host's job `keys[host]`, and who could not be asked any more.

    A connection that breaks is made again; a host that stays silent for 90 s is given up here, its
    job goes on there.
    """
    return on_all(remotes, lambda remote: _one(remote, keys[remote.name], show))


def _one(remote: Remote, key: str, show: Show) -> State:
    heard_s = time.monotonic()
    while True:
        try:
            for state in remote.lines("follow", "--key", key):
                if "updated" not in state:
                    continue  # the command's last word, which has no figures
                heard_s = time.monotonic()
                show.state(remote.name, state)
                if state["phase"] in _OVER:
                    return state
            return remote.agent("status", "--key", key)
        except HostError as error:
            if not error.silent:
                return _last_words(remote, key, error)
            if time.monotonic() - heard_s > _SILENCE_S:
                raise
        time.sleep(_AGAIN_S)


def _last_words(remote: Remote, key: str, error: HostError) -> State:
    """`follow` ends with 1 for a job that failed: its state says why."""
    state = remote.agent("status", "--key", key)
    if state["phase"] in _OVER:
        return state
    raise error


def failure(state: State) -> str:
    """Why a job did not end well; empty when it did."""
    if state["phase"] in PLACED:
        return ""
    if state.get("error"):
        return str(state["error"]["message"])
    return f"{state.get('host', '')}: the job is {state['phase']}; run again, it goes on"


def passed_by(states: Mapping[str, State]) -> list[str]:
    """Who was passed by for being slow or dead, as the others said: a sentence each."""
    told: dict[str, str] = {}
    for name, state in states.items():
        for host, why in state.get("passed_by", {}).items():
            told.setdefault(host, f"{host} was passed by, says {name}: {why}")
        for line in state.get("complaints", []):
            told.setdefault(line, line)
    return list(told.values())
