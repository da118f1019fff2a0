"""When may a host that has the model stop listening: when nobody can need it any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vllm_cluster.weights.agent import wire
from vllm_cluster.weights.agent.client import Caller
from vllm_cluster.weights.agent.route import GONE

_OVER = {"done", *GONE}
_NOT_SEEN_FACTOR = 3  # hosts are started one after the other, over SSH


class Farewell:
    """Each host tells each other one once that it is done; who heard from all and told all goes.

    A host that refuses connections after it said so has gone the same way. One that does not
    answer for linger_s (three times that, if it never did) is not waited for: it catches up when
    it is started again.
    """

    def __init__(self, caller: Caller, others: list[wire.Peer], linger_s: float) -> None:
        self._caller = caller
        self._others = others
        self._linger_s = linger_s
        self._phases: dict[str, str] = {}
        self._seen: set[str] = set()
        self._changed = threading.Condition()

    def heard(self, host: str, phase: str) -> None:
        with self._changed:
            self._phases[host] = phase
            self._seen.add(host)
            self._changed.notify_all()

    def wait(self, report: Callable[[list[str]], None]) -> list[str]:
        """Return the names of the hosts that were not reached; report() hears who is waited for."""
        untold = {peer.name: peer for peer in self._others}
        answered = dict.fromkeys(untold, time.monotonic())
        while True:
            for peer in list(untold.values()):
                if self._tell(peer, answered):
                    del untold[peer.name]
            waiting = [p.name for p in self._others if self._awaited(p, untold, answered)]
            if not waiting:
                now = time.monotonic()
                return [n for n, last in answered.items() if now - last > self._patience_s(n)]
            report(waiting)
            with self._changed:
                self._changed.wait(0.5)

    def _tell(self, peer: wire.Peer, answered: dict[str, float]) -> bool:
        """Say "done" to the peer. True when it need not be told again."""
        try:
            said = self._caller.tell(peer, "done")
        except (OSError, wire.WireError):
            gone = self._phases.get(peer.name) in _OVER
            if gone:
                answered[peer.name] = time.monotonic()
            return gone
        answered[peer.name] = time.monotonic()
        self._seen.add(peer.name)
        self._learn(peer, said)
        return True

    def _patience_s(self, name: str) -> float:
        return self._linger_s * (1 if name in self._seen else _NOT_SEEN_FACTOR)

    def _learn(self, peer: wire.Peer, said: dict[str, object]) -> None:
        """One that has it may have told an earlier life of ours, and will not again."""
        if said.get("phase") in GONE:
            self.heard(peer.name, "failed")
        elif said.get("phase") in {"serving", "done"}:
            self.heard(peer.name, "done")

    def _awaited(
        self, peer: wire.Peer, untold: dict[str, wire.Peer], answered: dict[str, float]
    ) -> bool:
        if self._phases.get(peer.name) in _OVER and peer.name not in untold:
            answered[peer.name] = time.monotonic()
            return False
        now = time.monotonic()
        if now - answered[peer.name] > self._linger_s / 4 and (state := self._caller.state(peer)):
            answered[peer.name] = now
            self._seen.add(peer.name)
            self._learn(peer, state)
        return now - answered[peer.name] <= self._patience_s(peer.name)
