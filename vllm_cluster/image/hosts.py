"""The hosts of a run, as far as they can be used: what each has, and work done on all at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from vllm_cluster.image.seen import STAGING, Seen, parse, script
from vllm_cluster.weights.fanout import Model
from vllm_cluster.weights.remote import Remote, RemoteError, State

Result = TypeVar("Result")
_CONTAINERD = (
    "Docker keeps its images in containerd's store, where an image has another ID; set "
    '{"features": {"containerd-snapshotter": false}} in /etc/docker/daemon.json, restart Docker '
    "and run again"
)


@dataclass
class Hosts:
    """`remotes` and `addresses` (on the fabric) by name, in the cluster's order.

    `reserve_bytes` must stay free on a disk. `failed` says why a host is out of the run.
    """

    remotes: Mapping[str, Remote]
    addresses: Mapping[str, str]
    reserve_bytes: int
    seen: dict[str, Seen] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def look(self, names: Sequence[str], image: str, reference: str) -> None:
        """Ask what their Dockers have."""

        def one(name: str) -> Seen:
            line = script(image, reference, self.addresses[name], everything=True)
            seen = parse(self.remotes[name].shell(line))
            if seen.containerd and not seen.id:
                raise RemoteError(f"{name}: {_CONTAINERD}")
            return seen

        self.seen.update(self.each(names, one))

    def good(self, names: Sequence[str]) -> list[str]:
        """Those that nothing has failed on."""
        return [name for name in names if name in self.seen and name not in self.failed]

    def remote(self, name: str) -> Remote:
        """The agent there, at work in its directory for images."""
        return replace(self.remotes[name], root=self.seen[name].staging)

    def staging(self, name: str, what: str) -> str:
        """A directory there for what is being made, of the file system on which it stays."""
        return f"{self.seen[name].staging}/.staging/{what}"

    def run_there(self, name: str, *words: str) -> list[str]:
        """The agent's command as the agent itself is to run it."""
        return shlex.split(self.remote(name).line(*words))

    def obtain(
        self, name: str, model: Model, source: Mapping[str, object], *, again: bool = False
    ) -> State:
        """Let the agent there place `model`, detached, and wait. Raises RemoteError."""
        wish = {
            "model": model.model, "revision": model.revision, "sources": [source], "me": name,
            "reserve_bytes": 0, "again": again,  # check_room() saw to it
        }  # fmt: skip
        return self.detached(name, "obtain", "--wish", wish)

    def detached(self, name: str, verb: str, option: str, wish: Mapping[str, object]) -> State:
        """Start a job of the agent there, or attach to it, and wait. Raises RemoteError."""
        remote = self.remote(name)
        started = remote.call(verb, option, "-", "--detach", stdin=json.dumps(wish))
        state = remote.follow(str(started["key"]))
        if state["phase"] == "done":
            return state
        words = str((state.get("error") or {}).get("message") or f"the job {state['phase']}")
        raise RemoteError(words if words.startswith(name) else f"{name}: {words}")

    def check_room(self, name: str, needed_bytes: int) -> None:
        """Raises RemoteError where Docker's disk cannot take it; what is staged there counts."""
        seen = self.seen[name]
        # As everywhere: of a small disk no more than a twentieth.
        spare = min(self.reserve_bytes, seen.total_bytes // 20)
        short = needed_bytes + spare - seen.free_bytes - seen.held_bytes
        if short <= 0:
            return
        raise RemoteError(
            f"{name}: {seen.staging.removesuffix(f'/{STAGING}')} has "
            f"{seen.free_bytes / 2**30:.2f} GiB free, the image needs {needed_bytes / 2**30:.2f} "
            f"GiB while it is brought and {spare / 2**30:.2f} GiB must stay free: free "
            f"{short / 2**30:.2f} GiB there, or set docker.data_root to a larger disk"
        )

    def clean(self, name: str) -> None:
        """Remove what was staged there."""
        staging = self.seen[name].staging
        if staging.endswith(f"/{STAGING}"):
            self.remotes[name].shell(f"rm -rf {shlex.quote(staging)}")

    def first(self, names: Sequence[str], work: Callable[[str], Result]) -> Result:
        """What the first host that can do it gives. Raises RemoteError with everyone's reason."""
        reasons = []
        for name in names:
            try:
                return work(name)
            except RemoteError as error:
                reasons.append(str(error))
                self.remotes[name].say(str(error))
        raise RemoteError("; ".join(reasons))

    def each(self, names: Sequence[str], work: Callable[[str], Result]) -> dict[str, Result]:
        """Do it on all at once; a host on which it failed is out of this run."""

        def one(name: str) -> Result | RemoteError:
            try:
                return work(name)
            except RemoteError as error:
                return error
            except ValueError as error:
                return RemoteError(f"{name}: {error}")

        with ThreadPoolExecutor(max(1, len(names))) as pool:
            ends = dict(zip(names, pool.map(one, names), strict=True))
        for name, end in ends.items():
            if isinstance(end, RemoteError):
                self.fail([name], str(end))
        return {name: end for name, end in ends.items() if not isinstance(end, RemoteError)}

    def fail(self, names: Sequence[str], reason: str) -> None:
        """Note why; the first reason counts."""
        for name in names:
            self.failed.setdefault(name, reason)
