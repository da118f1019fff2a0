"""The model onto a first host, from the first source that gives it whole."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from vllm_cluster.control.context import Context
from vllm_cluster.control.model_directory import directories, directory
from vllm_cluster.control.remote import ssh_options
from vllm_cluster.control.secrets import hub_token
from vllm_cluster.placing.follow import failure, follow
from vllm_cluster.placing.remote import HostError, Remote
from vllm_cluster.placing.run import Run
from vllm_cluster.plan import paths
from vllm_cluster.plan.weights import readers_of, source_text
from vllm_cluster.spec.weights_model import ModelSource
from vllm_cluster.weights import sources
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.seen import Seen


class NoSourceError(Exception):
    """No source gave the model whole; the message has every source's reason."""


def obtain(run: Run, remotes: Sequence[Remote], seen: Mapping[str, Seen]) -> str:
    """Place the model on one of `remotes` (those that answer, the head first). Returns its name.

    A job that runs already is attached to. Raises NoSourceError.
    """
    known, reasons = run.known, []
    for source in known.cluster.description.model.ordered:
        text = source_text(source, known.plan.weights.revision)
        for remote in _candidates(known, source, remotes):
            run.say(f"{remote.name} gets the model from {text}")
            try:
                wish = _wish(run, source, remote, seen[remote.name])
                state = remote.agent("obtain", "--wish", "-", "--detach", stdin=wish.encode())
                ended, lost = follow([remote], {remote.name: str(state["key"])}, run.show)
                words = str(lost[remote.name]) if lost else failure(ended[remote.name])
                if not words:
                    return remote.name
                reasons.append(f"{text}: {words}")
                if not lost:
                    break  # the source's fault: another host would find the same
            except (HostError, WeightsError) as error:
                reasons.append(f"{text}: {error}")
                if not (isinstance(error, HostError) and error.silent):
                    break
        else:
            if not any(reason.startswith(text) for reason in reasons):
                lacks = "no such directory" if source.here else "no host that answers can read it"
                reasons.append(f"{text}: {lacks}")
    raise NoSourceError("no source gave the model. " + "; ".join(reasons))


def _candidates(known: Context, source: ModelSource, remotes: Sequence[Remote]) -> Iterator[Remote]:
    """The hosts that can read `source`, the best first."""
    if source.host is not None:
        yield from (remote for remote in remotes if remote.name == source.host)
    elif source.nfs is not None:
        readers = readers_of(known.cluster.description, source.nfs)
        by_name = {remote.name: remote for remote in remotes}
        yield from (by_name[name] for name in readers if name in by_name)
    elif source.here is None or known.cluster.local(source.here).is_dir():
        yield from remotes


def _wish(run: Run, source: ModelSource, remote: Remote, seen: Seen) -> str:
    known = run.known
    weights = known.plan.weights
    storage = known.cluster.description.storage
    mount = remote.host.storage.holding(weights.root)
    secrets: dict[str, str] = {}
    if source.here is not None:
        asked = _push(run, remote, source)
    elif source.hub is not None:
        token = hub_token(known.cluster)
        file = f"{weights.root}/.jobs/{weights.model.replace('/', '--')}.hub-token"
        secrets = {file: token} if token else {}
        hub = sources.Hub(source.hub, file if token else None, source.endpoint)
        asked = sources.from_hub(
            hub, weights.revision, root=weights.root, agent=paths.AGENT,
            image=known.plan.image, reserve_bytes=storage.reserve,
        )  # fmt: skip
    else:
        path = source.directory or source.nfs
        assert path is not None  # noqa: S101  a checked description
        asked = sources.from_host(sources.HostDirectory(path))
    return sources.make_wish(
        weights.model, weights.revision, [asked], host=remote.name,
        reserve_bytes=storage.reserve, mountpoint=mount.where if mount else None,
        keep=weights.keep, identity=weights.identity or None, secrets=secrets,
        again=bool(seen.identity) and seen.identity != weights.identity,
    )  # fmt: skip


def _push(run: Run, remote: Remote, source: ModelSource) -> dict[str, object]:
    """Send a directory of this machine to the host. Raises HostError, WeightsError."""
    known = run.known
    weights, manifest = known.plan.weights, known.manifest
    assert source.here is not None  # noqa: S101  the caller looked
    folder = known.cluster.local(source.here)
    if next(directories(known.cluster)) == folder:
        folder = directory(known.cluster) or folder
    push = sources.look(folder, weights.revision)
    target = sources.pushed_dir(weights.root, weights.model, weights.revision)
    total = sum(file.size_bytes for file in push.files)
    mount = remote.host.storage.holding(weights.root)
    room = ["room", "--into", target, "--bytes", str(total)]
    room += ["--reserve-bytes", str(known.cluster.description.storage.reserve)]
    remote.agent(*room, *(["--mountpoint", mount.where] if mount else []))
    argv = sources.rsync_argv(
        push, ssh_options(known.cluster), f"{remote.host.ssh}:{target}",
        limit_mbit=weights.limit_mbit, sudo=known.cluster.description.ssh.user != "root",
    )  # fmt: skip
    _rsync(run, remote.name, argv, push)
    sources.check_unchanged(push)
    sums = {entry.path: entry.sha256 for entry in manifest.files} if manifest else None
    return sources.from_push(
        push, root=weights.root, model=weights.model, revision=weights.revision, sums=sums
    )


def _rsync(run: Run, host: str, argv: list[str], push: sources.Push) -> None:
    """Run it; `--info=progress2` says how far it is on one line that it writes over and over.

    Raises HostError, or WeightsError when this machine has no rsync.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told,
                pass_fds=(run.guard,),
            )  # fmt: skip
        except FileNotFoundError:
            what = "this machine has no rsync, which sends the model to the first host"
            reason = f"{what}: apt-get install rsync"
            raise WeightsError(reason) from None
        assert process.stdin is not None  # noqa: S101
        with suppress(BrokenPipeError), process.stdin as names:  # it says itself why it went
            names.write(sources.rsync_names(push))
        _show(run, host, process, sum(file.size_bytes for file in push.files))
        if process.wait():
            told.seek(0)
            words = [line.strip() for line in told if line.strip()]
            why = "; ".join(words[:3]) or f"exit status {process.returncode}"
            raise HostError(host, f"rsync of {push.directory}: {why}")


def _show(run: Run, host: str, process: subprocess.Popen[bytes], total_bytes: int) -> None:
    line = b""
    for piece in iter(lambda: process.stdout.read(1) if process.stdout else b"", b""):
        if piece not in {b"\r", b"\n"}:
            line += piece
            continue
        done = (line.split() or [b""])[0].replace(b",", b"")
        if done.isdigit():
            state = {"phase": "pushing", "have_bytes": int(done), "total_bytes": total_bytes}
            run.show.state(host, state)
        line = b""
