"""Fetch what a tree misses, bring it to the disk as it comes, and say how far it is."""

from __future__ import annotations

import threading
import time

from vllm_cluster.weights.agent.client import Caller, Pace
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.fetch import Fetch
from vllm_cluster.weights.agent.job import Job
from vllm_cluster.weights.agent.route import Route
from vllm_cluster.weights.agent.state import Progress
from vllm_cluster.weights.agent.tree import Tree


class Fill:
    """The fetching half of a host's part. run() raises WeightsError."""

    def __init__(self, tree: Tree, job: Job, caller: Caller, progress: Progress) -> None:
        self._tree = tree
        self._progress = progress
        self._syncer = _Syncer(tree)
        self._route = Route(
            job.upstreams, job.tuning, time.monotonic(), known_bytes_s=job.known_bytes_s
        )
        limit = job.limit_mbit
        self.fetch = Fetch(
            tree,
            self._route,
            caller,
            before_us={peer.name for peer in job.before},
            limits=job.limits,
            pace=Pace(limit * 1e6 / 8 if limit else None),
            file_done=self._syncer.file_done,
        )

    def run(self) -> None:
        started = time.monotonic()
        kept = self._tree.have_bytes
        self._progress.enter("fetching", have_bytes=kept, kept_bytes=kept)
        try:
            self.fetch.run(self._report)
            self._syncer.finish()
        finally:
            self._progress.value.update(self._summary(), fetch_s=time.monotonic() - started)

    def _report(self) -> None:
        self._syncer.check()
        self._progress.count(self._tree.have_bytes, **self._summary())

    def _summary(self) -> dict[str, object]:
        return {
            "from": self._route.current.name,
            "passed_by": dict(self._route.passed),
            "troubles": self._route.troubles(),
            "complaints": self.fetch.complaints[-20:],
            "from_peers": dict(self.fetch.from_peer),
            "fetched_bytes": self.fetch.received_bytes,
            "refused_bytes": self.fetch.refused_bytes,
        }


class _Syncer:
    """Brings each file to the disk as soon as it is complete, so that the end is not a wait."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._files: list[int] = []
        self._wake = threading.Condition()
        self._over = False
        self._failure: WeightsError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def file_done(self, file_index: int) -> None:
        with self._wake:
            self._files.append(file_index)
            self._wake.notify()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        with self._wake:
            self._over = True
            self._wake.notify()
        self._thread.join()
        self.check()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: bool(self._files) or self._over)
                if not self._files:
                    return
                file_index = self._files.pop(0)
            try:
                self._tree.sync_file(file_index)
            except WeightsError as exc:
                self._failure = exc
                return
