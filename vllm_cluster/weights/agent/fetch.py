"""Fill a tree from peers: a few connections, each asking ahead, every chunk verified."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vllm_cluster.weights.agent import wire
from vllm_cluster.weights.agent.client import Caller, Link, Pace
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.route import Route
from vllm_cluster.weights.agent.tree import Tree
from vllm_cluster.weights.manifest import Chunk

_AHEAD = 2  # requests under way on a connection: the next chunk starts when the last one ends
_WAIT_S = 4.0
_RETRY_S = 0.5
_FIRST_RETRY_S = 0.05  # hosts start at about the same time: who is not up yet soon is
_MISTRUST = 3  # wrong bytes for one chunk from one peer before it is not asked for it again


@dataclass(frozen=True)
class Limits:
    """connections: at once, each worth 4 to 5 Gbit/s; give_up_s: without any chunk arriving."""

    connections: int = 2
    give_up_s: float = 900.0
    rescue_s: float = 15.0


class Fetch:
    """One model's missing chunks, from now until they are there. run() raises WeightsError."""

    def __init__(
        self,
        tree: Tree,
        route: Route,
        caller: Caller,
        *,
        before_us: set[str],
        limits: Limits,
        pace: Pace,
        file_done: Callable[[int], None],
    ) -> None:
        self.tree = tree
        self.route = route
        self._caller = caller
        self._before_us = before_us  # peers that may be waited for: no circle of waiting hosts
        self._limits = limits
        self._pace = pace
        self._file_done = file_done
        self._lock = threading.Lock()
        self._todo: list[int] = tree.missing()  # a heap: in order, so that it flows down a chain
        self._wrong: dict[int, dict[str, int]] = {}  # chunk: peer: times its bytes were wrong
        self._odd: dict[int, float] = {}  # chunks the current peer cannot give: since when
        self._failure: WeightsError | None = None
        self._stop = threading.Event()
        self._last_arrival = time.monotonic()
        self.received_bytes = 0
        self.refused_bytes = 0  # arrived wrong
        self.complaints: list[str] = []
        self.from_peer: dict[str, int] = {}

    # -- the outside ---------------------------------------------------------------------------

    def run(self, tick: Callable[[], None]) -> None:
        """Fetch until the tree is complete; call tick about once a second.

        Raises WeightsError: a full disk, a chunk nobody has right, or nothing for give_up_s.
        """
        workers = [
            threading.Thread(target=self._guarded, args=(self._work,), daemon=True)
            for _ in range(self._limits.connections)
        ]
        workers.append(threading.Thread(target=self._guarded, args=(self._steer,), daemon=True))
        for worker in workers:
            worker.start()
        try:
            while not self.tree.complete and self._failure is None:
                self._stop.wait(0.05 if self._nearly_done() else 0.5)
                tick()
        finally:
            self._stop.set()
        for worker in workers[:-1]:  # the steering thread may sit in a probe; it changes nothing
            worker.join()
        if self._failure is not None:
            raise self._failure

    def put_back(self, chunk: Chunk) -> None:
        """Fetch a chunk again that turned out damaged on our own disk."""
        self.tree.drop(chunk)
        with self._lock:
            heapq.heappush(self._todo, chunk.index)

    def _nearly_done(self) -> bool:
        return len(self.tree.chunks) - self.tree.count < 64

    # -- workers -------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except WeightsError as exc:
            self._failure = self._failure or exc
            self._stop.set()

    def _work(self) -> None:
        link: Link | None = None
        retry_s = _FIRST_RETRY_S
        try:
            while not self._stop.is_set() and not self.tree.complete:
                peer = self.route.current
                if link is None or link.peer != peer:
                    if link is not None:
                        link.close()
                    link = self._connect(peer)
                    if link is None:
                        self._stop.wait(retry_s)
                        retry_s = min(_RETRY_S, 2 * retry_s)
                        continue
                    retry_s = _FIRST_RETRY_S
                if not self._converse(link):
                    link.close()
                    link = None
        finally:
            if link is not None:
                link.close()

    def _connect(self, peer: wire.Peer) -> Link | None:
        try:
            return Link(self._caller, peer)
        except OSError as exc:
            self._trouble(peer, exc)
            return None

    def _converse(self, link: Link) -> bool:
        """Fetch over one connection until it breaks (False), or the route changes (True)."""
        asked: deque[Chunk] = deque()
        try:
            while not self._stop.is_set():
                moving = self.route.current == link.peer
                while moving and len(asked) < _AHEAD and (chunk := self._take(link.peer)):
                    asked.append(chunk)
                    link.ask(chunk, wait_s=self._wait_s(link.peer), check=self._doubted(chunk))
                if not asked:
                    if moving and not self.tree.complete:
                        self._stop.wait(0.02)  # the others have the last chunks in hand
                        continue
                    return True
                status = link.receive(asked[0], self.tree, self._pace)
                self._settle(asked.popleft(), link.peer, status)
        except (OSError, wire.WireError) as exc:
            self._trouble(link.peer, exc)
            return False
        finally:
            with self._lock:
                for chunk in asked:
                    heapq.heappush(self._todo, chunk.index)
        return True

    def _wait_s(self, peer: wire.Peer) -> float:
        return min(_WAIT_S, self._caller.silence_s / 2) if peer.name in self._before_us else 0.0

    def _doubted(self, chunk: Chunk) -> bool:
        return chunk.index in self._wrong

    def _take(self, peer: wire.Peer) -> Chunk | None:
        with self._lock:
            while self._todo:
                index = heapq.heappop(self._todo)
                if self.tree.has(index):
                    continue
                if self._wrong.get(index, {}).get(peer.name, 0) >= _MISTRUST:
                    self._odd.setdefault(index, time.monotonic())
                    continue
                return self.tree.chunks[index]
        return None

    def _settle(self, chunk: Chunk, peer: wire.Peer, status: int) -> None:
        self.route.worked(peer)
        if status == wire.OK:
            self._arrived(chunk, peer)
            return
        with self._lock:
            if status != wire.WAITING:
                # Asked to look, the peer's own word that its copy is bad settles it at once.
                counts = self._wrong.setdefault(chunk.index, {})
                weight = 1 if status == wire.WRONG else _MISTRUST
                counts[peer.name] = counts.get(peer.name, 0) + weight
                self._complain(chunk, peer, status)
            heapq.heappush(self._todo, chunk.index)
        if status == wire.WAITING and peer.name not in self._before_us:
            self._stop.wait(_RETRY_S)

    def _arrived(self, chunk: Chunk, peer: wire.Peer) -> None:
        with self._lock:
            self._last_arrival = time.monotonic()
            self.received_bytes += chunk.length
            self.from_peer[peer.name] = self.from_peer.get(peer.name, 0) + chunk.length
            self._odd.pop(chunk.index, None)
        if self.tree.add(chunk):
            self._file_done(chunk.file_index)

    def _complain(self, chunk: Chunk, peer: wire.Peer, status: int) -> None:
        what = "came wrong" if status == wire.WRONG else "is damaged on its disk"
        if status == wire.WRONG:
            self.refused_bytes += chunk.length
        self.complaints.append(
            f"{peer.name}: {self.tree.file_of(chunk)}: the piece at byte {chunk.offset} {what}"
        )

    def _trouble(self, peer: wire.Peer, exc: Exception) -> None:
        words = str(exc)
        if isinstance(exc, BlockingIOError | TimeoutError):
            words = f"silent for {self._caller.silence_s:g} s"
        elif isinstance(exc, OSError) and exc.strerror:
            words = exc.strerror
        self.route.failed(peer, words, time.monotonic())

    # -- steering ------------------------------------------------------------------------------

    def _steer(self) -> None:
        marks: deque[tuple[float, int]] = deque(maxlen=6)
        while not self._stop.wait(1.0):
            now = time.monotonic()
            marks.append((now, self.received_bytes))
            span = now - marks[0][0]
            rate = (marks[-1][1] - marks[0][1]) / span if span else 0.0
            if len(marks) == marks.maxlen:
                self.route.tick(now, self.tree.count, rate, self._caller.state)
            else:
                self.route.tick(now, self.tree.count, self.route.known_bytes_s, self._caller.state)
            self._rescue(now)
            if now - self._last_arrival > self._limits.give_up_s:
                raise self._nothing_comes()

    def _nothing_comes(self) -> WeightsError:
        troubles = self.route.troubles() or [f"{self.route.current.name}: waits for chunks itself"]
        missing = self.tree.missing()
        return WeightsError(
            f"no chunk for {self._limits.give_up_s:g} s, {len(missing)} missing; "
            + "; ".join(troubles),
            file=self.tree.file_of(self.tree.chunks[missing[0]]),
        )

    def _rescue(self, now: float) -> None:
        """Ask everybody for the chunks that the current peer has wrong."""
        with self._lock:
            odd = dict(self._odd)
        for index, since in odd.items():
            chunk = self.tree.chunks[index]
            answers = {}
            for peer in self.route.peers:
                answers[peer.name] = self._fetch_one(peer, chunk)
                if self.tree.has(index):
                    break
            else:
                if now - since > self._limits.rescue_s and not self._others_left(odd):
                    told = "; ".join(f"{name}: {why}" for name, why in answers.items())
                    raise WeightsError(
                        f"the {chunk.length} bytes at {chunk.offset} are right on no host ({told})",
                        file=self.tree.file_of(chunk),
                    )

    def _others_left(self, odd: dict[int, float]) -> bool:
        return any(index not in odd for index in self.tree.missing())

    def _fetch_one(self, peer: wire.Peer, chunk: Chunk) -> str:
        try:
            link = Link(self._caller, peer)
        except OSError as exc:
            return exc.strerror or str(exc)
        try:
            link.ask(chunk, wait_s=0, check=True)
            status = link.receive(chunk, self.tree, self._pace)
        except (OSError, wire.WireError) as exc:
            return str(exc)
        finally:
            link.close()
        if status == wire.OK:
            self._arrived(chunk, peer)
        return {
            wire.OK: "right",
            wire.WAITING: "does not have it",
            wire.DAMAGED: "has it damaged on its disk",
            wire.WRONG: "has it right, but it is damaged on the way",
        }[status]
