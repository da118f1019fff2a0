"""A host's part in a fan-out: get the model, pass it on, stop listening when all have it."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent import wire
from vllm_cluster.weights.agent.card import card_mbit
from vllm_cluster.weights.agent.check import Findings, glance, read_everything
from vllm_cluster.weights.agent.client import Caller
from vllm_cluster.weights.agent.errors import (
    StoppedError,
    WeightsError,
    from_os_error,
    name_this_host,
)
from vllm_cluster.weights.agent.farewell import Farewell
from vllm_cluster.weights.agent.fill import Fill
from vllm_cluster.weights.agent.job import Job
from vllm_cluster.weights.agent.layout import (
    MANIFEST_FILE,
    Layout,
    Placed,
    check_space,
    key_for,
    remove_tree,
    sync_dir,
    write_file,
    written_bytes,
)
from vllm_cluster.weights.agent.own import is_shared, own_files
from vllm_cluster.weights.agent.publish import point, prune, publish, write_stamps
from vllm_cluster.weights.agent.server import Server
from vllm_cluster.weights.agent.state import Progress
from vllm_cluster.weights.agent.tree import Tree
from vllm_cluster.weights.manifest import META_DIR, Chunk, Manifest, ManifestError, parse_manifest

_MANIFEST_S = 120.0  # a manifest of 500 GB has 4 MB; its host may still be starting


class Part:
    """Runs one Job on this host. The caller holds the job's lock."""

    def __init__(self, layout: Layout, job: Job) -> None:
        name_this_host(job.me)
        self.layout = layout
        self.job = job
        self.identity = job.identity
        self.key = key_for(job.model, job.identity)
        self.progress = Progress(
            layout,
            self.key,
            host=job.me,
            model=job.model,
            revision=job.revision,
            identity=job.identity,
            card_mbit=card_mbit(job.own.address),
        )
        self.caller = Caller(job.me, job.own.address, job.token, job.identity, job.silence_s)
        self.tree: Tree
        self._fill: Fill | None = None
        self._server: Server | None = None
        self._farewell = Farewell(self.caller, job.others, job.linger_s)

    # -- what the server shows -----------------------------------------------------------------

    def state(self) -> dict[str, object]:
        return {
            "host": self.job.me,
            "phase": self.progress.phase,
            "have": self.tree.count,
            "chunks": len(self.tree.chunks),
        }

    def heard(self, host: str, phase: str) -> None:
        self._farewell.heard(host, phase)

    def damaged(self, chunk: Chunk) -> None:
        """A peer got wrong bytes and our disk has them: fetch them again, if we still do."""
        note = (
            f"{self.job.me}: {self.tree.file_of(chunk)}: the piece at byte {chunk.offset} is"
            " damaged on this disk"
        )
        if note not in self.progress.value["notes"]:
            self.progress.value["notes"].append(note)
        if self._fill is not None and not self.tree.complete:
            self._fill.fetch.put_back(chunk)

    # -- the run -------------------------------------------------------------------------------

    def run(self, how: str) -> dict[str, Any]:
        """Take part until everybody has the model. Returns the final state; raises WeightsError.

        how: "pull" fetches what is missing; "serve" fails when the model is not placed here and
        whole; "repair" reads every byte first.
        """
        self.progress.enter("starting")
        try:
            self._join(how)
            self._see_off()
        except WeightsError as exc:
            self._fail(exc)
            raise
        except OSError as exc:
            name = str(exc.filename or self.layout.root)
            failure = from_os_error(exc, file=name)
            self._fail(failure)
            raise failure from exc
        finally:
            if self._server is not None:
                self._server.close()
        return self.progress.value

    def _join(self, how: str) -> None:
        try:
            placed = self.layout.find(self.identity)
        except WeightsError:  # its manifest is lost or damaged
            if how == "serve":
                raise
            self._take_down()
            placed = None
        if placed is not None:
            self._join_with(placed, how)
        elif how == "pull":
            self._join_without()
        else:
            raise WeightsError("the model is not placed here")

    def _listen(self) -> None:
        allowed = [peer.address for peer in self.job.others]
        self._server = Server(self.job.own, self, self.job.token, allowed)

    def _fail(self, exc: WeightsError) -> None:
        phase = "stopped" if isinstance(exc, StoppedError) else "failed"
        self.progress.enter(phase, error=exc.as_dict())
        for peer in self.job.others:
            with suppress(OSError, wire.WireError):
                self.caller.tell(peer, "failed")

    # -- it is here ----------------------------------------------------------------------------

    def _join_with(self, placed: Placed, how: str) -> None:
        found = glance(placed)
        if found.added and self.job.remove_added and how != "serve":
            _remove_added(placed, found)
        if found.ok and how != "repair":
            self.tree = Tree(placed.manifest, placed.directory, writable=False)
            self.tree.add_all()
            self._listen()
        elif how == "serve" or found.added:
            lines = "; ".join(found.sentences(placed.manifest.chunk_bytes))
            raise WeightsError(f"the placed copy is not whole: {lines}")
        else:
            self._mend(placed)
        point(self.layout, self.job.model, self.job.revision, placed.key)
        self._complete()

    def _mend(self, placed: Placed) -> None:
        """Read everything, fetch the bad chunks alone. The files being mended have no stamp
        meanwhile, so no glance takes them for whole."""
        manifest = placed.manifest
        self.progress.enter("checking", total_bytes=manifest.total_bytes)
        done = 0

        def count(length: int) -> None:
            nonlocal done
            done += length
            self.progress.count(done)

        found = read_everything(placed, threads(), count)
        if found.suspect:
            raise WeightsError("was written to while it was read; run again", file=found.suspect[0])
        bad = found.bad
        write_stamps(placed.directory, manifest, bad, found.stamps)
        self._room_to_mend(placed, bad)
        own_files(placed, found)
        self.tree = Tree(manifest, placed.directory, writable=True)
        for chunk in self.tree.chunks:
            path = self.tree.file_of(chunk)
            number = chunk.offset // manifest.chunk_bytes
            if path not in found.missing and number not in found.damaged.get(path, ()):
                self.tree.add(chunk)
        self._listen()
        if bad:
            self.progress.value["mended"] = found.as_dict()
            _clear_the_way(placed, found)
            self.tree.create(only=bad)
            self._fetch()
            self.tree.sync()
            right = {path: stamp for path, stamp in found.stamps.items() if path not in bad}
            write_stamps(placed.directory, manifest, read=right)

    def _room_to_mend(self, placed: Placed, bad: set[str]) -> None:
        """A file that is missing or cut short is fetched like a new one, and a hard-linked one gets
        a file of its own. What is mended in place takes nothing, however full the disk is."""
        needed = {
            entry.path: entry.size_bytes - _kept_bytes(placed.directory / entry.path)
            for entry in placed.manifest.files
            if entry.path in bad
        }
        needed_bytes = sum(max(0, count) for count in needed.values())
        if needed_bytes:
            self._check_space(needed_bytes, file=max(needed, key=lambda path: needed[path]))

    def _take_down(self) -> None:
        """A copy whose manifest cannot be read begins anew in staging, with what its files hold."""
        staging = self.layout.staging / self.key
        remove_tree(staging)
        self.layout.placed_dir(self.key).rename(staging)
        sync_dir(self.layout.store)
        for path in staging.rglob("*"):
            if is_shared(path):
                path.unlink()

    # -- it is not -----------------------------------------------------------------------------

    def _join_without(self) -> None:
        manifest = self._manifest()
        staging = self.layout.staging / self.key
        self.tree = Tree(manifest, staging, writable=True)
        self.progress.value["total_bytes"] = manifest.total_bytes
        self._make_room(manifest)
        self.tree.create()
        self._listen()
        self.progress.enter("checking")
        self.tree.find_right(threads())
        self._fetch()
        self.progress.enter("syncing", have_bytes=manifest.total_bytes)
        publish(self.layout, self.tree)
        removed = prune(self.layout, self.key, self.job.keep)
        self._complete(removed=removed)

    def _fetch(self) -> None:
        self._fill = Fill(self.tree, self.job, self.caller, self.progress)
        self._fill.run()

    def _manifest(self) -> Manifest:
        """The one kept in staging, or a peer's; its hash must be the identity."""
        kept = self.layout.staging / self.key / META_DIR / MANIFEST_FILE
        with suppress(OSError, ManifestError):
            return parse_manifest(kept.read_bytes(), self.identity)
        data, manifest = self._manifest_of_peer()
        if (manifest.model, manifest.revision) != (self.job.model, self.job.revision):
            raise WeightsError(f"{self.identity} is {manifest.model} at {manifest.revision}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, data)
        return manifest

    def _manifest_of_peer(self) -> tuple[bytes, Manifest]:
        deadline = time.monotonic() + _MANIFEST_S
        troubles: dict[str, str] = {}
        while time.monotonic() < deadline:
            for peer in self.job.upstreams:
                try:
                    data = self.caller.ask(peer, "GET", "manifest", self.job.silence_s)
                    return data, parse_manifest(data, self.identity)
                except (OSError, wire.WireError, ManifestError) as exc:
                    troubles[peer.name] = getattr(exc, "strerror", None) or str(exc)
            time.sleep(0.1)
        told = "; ".join(f"{name}: {why}" for name, why in troubles.items())
        raise WeightsError(f"no host gave the manifest ({told})")

    def _make_room(self, manifest: Manifest) -> None:
        here = written_bytes(self.layout.staging / self.key)
        self._check_space(max(0, manifest.total_bytes - here), file=manifest.model)

    def _check_space(self, needed_bytes: int, *, file: str) -> None:
        check_space(
            self.layout,
            needed_bytes,
            reserve_bytes=self.job.reserve_bytes,
            mountpoint=self.job.mountpoint,
            file=file,
        )

    # -- the end -------------------------------------------------------------------------------

    def _complete(self, **more: Any) -> None:
        self.progress.enter(
            "serving",
            total_bytes=self.tree.manifest.total_bytes,
            have_bytes=self.tree.have_bytes,
            left_s=0,
            placed=time.time(),
            path=str(self.layout.ref(self.job.model, self.job.revision)),
            **more,
        )

    def _see_off(self) -> None:
        def report(waiting: list[str]) -> None:
            self.progress.count(self.tree.have_bytes, waits_for=waiting)

        not_reached = self._farewell.wait(report)
        sent = self._server.sent_bytes if self._server else 0
        self.progress.enter("done", sent_bytes=sent, not_reached=not_reached, waits_for=[])


def _remove_added(placed: Placed, found: Findings) -> None:
    for name in found.added:
        path = placed.directory / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    found.added = []


def _kept_bytes(path: Path) -> int:
    """What a bad file has on the disk already that its mending writes into."""
    try:
        info = path.lstat()
    except OSError:
        return 0
    plain = stat.S_ISREG(info.st_mode) and info.st_nlink == 1
    return info.st_blocks * 512 if plain else 0


def _clear_the_way(placed: Placed, found: Findings) -> None:
    """A link or a directory where a file belongs would be written through, or in the way."""
    for name in found.wrong_size:
        path: Path = placed.directory / name
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            remove_tree(path)


def threads() -> int:
    """One reader a core; more than 16 outrun the disks of a host."""
    return max(1, min(16, os.cpu_count() or 1))
