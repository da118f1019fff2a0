"""From whom to fetch now. Falling back is slow to start, and it returns.

Every host prefers its predecessor in the chain, then that one's predecessor, up to the first, then
the hosts after itself. A predecessor that is alive but has nothing yet is waited for: its own
trouble is its own to get around. If every host left it for the first one, the first one's uplink
would carry the model once per host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vllm_cluster.weights.agent.wire import Peer

Probe = Callable[[Peer], "dict[str, object] | None"]
GONE = {"failed", "left"}


@dataclass(frozen=True)
class Tuning:
    """Times in seconds; the tests shorten them.

    patience_s: a peer may fail this long before another is asked; absent_s: one that was not seen
    yet, because hosts are not started all at once. slow_s: a rate under a third of
    the known one for this long makes a trial with the next peer, which lasts trial_s and must be
    half as fast again. return_s: how often better peers are looked at; a peer must answer twice in
    a row to be gone back to. hold_s: a peer found slow is left alone that long, then twice that.
    """

    patience_s: float = 5.0
    absent_s: float = 20.0
    slow_s: float = 20.0
    trial_s: float = 10.0
    return_s: float = 4.0
    hold_s: float = 60.0


@dataclass
class _View:
    """What is known of one peer."""

    failing_since: float | None = None
    seen: bool = False
    why: str = ""
    answers: int = 0  # successful looks in a row, while it is not the current one
    left_alone_until: float = 0.0
    times_slow: int = 0


@dataclass
class _Trial:
    """First with `other`. A suspect that is itself a replacement is measured again after that."""

    start: float
    before_bytes_s: float
    suspect: int
    other: int
    other_bytes_s: float | None = None  # known: it is the suspect's turn again


@dataclass
class Route:
    """The choice of upstream for one host. tick() is called about once a second by one thread."""

    peers: list[Peer]  # in order of preference
    tuning: Tuning
    start: float
    known_bytes_s: float = 0.0  # the link's measured rate, or the best seen so far
    passed: dict[str, str] = field(default_factory=dict)  # host: why it was passed by

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._views = [_View() for _ in self.peers]
        self._index = 0
        self._looked_at = self.start
        self._slow_since: float | None = None
        self._trial: _Trial | None = None

    @property
    def current(self) -> Peer:
        return self.peers[self._index]

    def failed(self, peer: Peer, why: str, now: float) -> None:
        """A connection to the peer broke or was refused."""
        with self._lock:
            view = self._views[self.peers.index(peer)]
            view.why = why
            view.answers = 0
            if view.failing_since is None:
                view.failing_since = now

    def worked(self, peer: Peer) -> None:
        """The peer gave a chunk, or said that it waits for one itself."""
        view = self._views[self.peers.index(peer)]
        view.failing_since = None
        view.seen = True

    def troubles(self) -> list[str]:
        """What is wrong with whom, in words, for the message when nothing helps."""
        return [
            f"{peer.name} ({peer.address}): {view.why}"
            for peer, view in zip(self.peers, self._views, strict=True)
            if view.failing_since is not None
        ]

    def tick(self, now: float, have: int, rate_bytes_s: float, probe: Probe) -> None:
        """Look at the peers and choose. `have`: chunks here; rate: over the last seconds."""
        self.known_bytes_s = max(self.known_bytes_s, rate_bytes_s)
        view = self._views[self._index]
        failing = view.failing_since
        patience_s = self.tuning.patience_s if view.seen else self.tuning.absent_s
        if failing is not None and now - failing >= patience_s:
            self._leave_failed(now, probe)
        elif self._trial is not None:
            self._end_trial(now, rate_bytes_s)
        elif now - self._looked_at >= self.tuning.return_s:
            self._looked_at = now
            if not self._return(now, probe):
                self._suspect_slow(now, have, rate_bytes_s, probe)

    # -- dead ----------------------------------------------------------------------------------

    def _leave_failed(self, now: float, probe: Probe) -> None:
        left = self.current
        self._trial = None
        for index, peer in enumerate(self.peers):
            if index == self._index or self._views[index].left_alone_until > now:
                continue
            state = probe(peer)
            if state is not None and state.get("phase") not in GONE:
                self.passed[left.name] = self._views[self._index].why
                self._views[index].failing_since = None
                self._go(index, now)
                return
            self._views[index].failing_since = self._views[index].failing_since or now
            self._views[index].why = "does not answer" if state is None else "gave up"
            self._views[index].answers = 0

    def _return(self, now: float, probe: Probe) -> bool:
        """Back to a better peer that answers again, be it behind us: together we would load the
        next one's uplink twice, and it gets ahead of us faster alone. False: there is none."""
        for index in range(self._index):
            view = self._views[index]
            if view.left_alone_until > now:
                continue
            state = probe(self.peers[index])
            if state is None or state.get("phase") in GONE:
                view.answers = 0
                continue
            view.answers += 1
            if view.answers >= 2:
                view.failing_since = None
                self.passed.pop(self.peers[index].name, None)
                self._go(index, now)
                return True
        return False

    # -- slow ----------------------------------------------------------------------------------

    def _suspect_slow(self, now: float, have: int, rate_bytes_s: float, probe: Probe) -> None:
        """Start a trial with the next peer when the current one is what holds us up."""
        other = None
        if (
            rate_bytes_s < self.known_bytes_s / 3
            and self._views[self._index].left_alone_until <= now
        ):
            other = self._instead(now, have, probe)
        if other is None:
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since >= self.tuning.slow_s:
            self._trial = _Trial(now, rate_bytes_s, self._index, other)
            self.passed[self.current.name] = (
                f"slow: {rate_bytes_s / 1e6:.1f} MB/s; trying {self.peers[other].name}"
            )
            self._go(other, now)

    def _instead(self, now: float, have: int, probe: Probe) -> int | None:
        """The next peer that answers, if the current one lags behind it or we behind the current
        one. A dead one in between must not keep us at a slow one."""
        own = probe(self.current)
        if own is None:
            return None
        for index in range(self._index + 1, len(self.peers)):
            if self._views[index].left_alone_until > now:
                continue
            above = probe(self.peers[index])
            if above is not None and above.get("phase") not in GONE:
                return index if _holds_up(own, above, have) else None
        return None

    def _end_trial(self, now: float, rate_bytes_s: float) -> None:
        trial = self._trial
        if trial is None or now - trial.start < self.tuning.trial_s:
            return
        if trial.other_bytes_s is None:
            faster = rate_bytes_s > 1.5 * trial.before_bytes_s
            if faster and trial.suspect > 0:
                # A replacement serves its own successor too, and others that fell back to it: they
                # may have gone meanwhile, for a trial as we did. Judged is what it gives now.
                self._trial = replace(trial, start=now, other_bytes_s=rate_bytes_s)
                self._go(trial.suspect, now)
                return
            suspect_bytes_s, other_bytes_s = trial.before_bytes_s, rate_bytes_s
        else:
            suspect_bytes_s, other_bytes_s = rate_bytes_s, trial.other_bytes_s
            faster = other_bytes_s > 1.5 * suspect_bytes_s
        self._trial = None
        view = self._views[trial.suspect]
        view.times_slow += 1
        view.left_alone_until = now + self.tuning.hold_s * 2 ** (view.times_slow - 1)
        if faster:
            self.passed[self.peers[trial.suspect].name] = (
                f"slow: {suspect_bytes_s / 1e6:.1f} MB/s,"
                f" {other_bytes_s / 1e6:.1f} MB/s from {self.peers[trial.other].name}"
            )
            self._go(trial.other, now)
        else:  # not its fault
            self.passed.pop(self.peers[trial.suspect].name, None)
            self._go(trial.suspect, now)

    def _go(self, index: int, now: float) -> None:
        self._index = index
        self._looked_at = now
        self._slow_since = None
        for view in self._views:
            view.answers = 0


def _holds_up(own: dict[str, object], above: dict[str, object], have: int) -> bool:
    """Whether the peer lags behind the one above it, or we behind the peer, by 16 chunks. One that
    has no more than we could give nothing in a trial: often it is behind us and fetches from us."""
    counts = [state.get("have") for state in (own, above)]
    if not all(isinstance(count, int) for count in counts):
        return False
    own_have, above_have = (int(str(count)) for count in counts)
    return above_have > have and (above_have - own_have >= 16 or own_have - have >= 16)
