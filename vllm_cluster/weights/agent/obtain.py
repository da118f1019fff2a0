"""Get a model onto the first host from the first source that has it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent.adopt import Adoption, adopt, read_expected
from vllm_cluster.weights.agent.check import glance
from vllm_cluster.weights.agent.errors import WeightsError, name_this_host
from vllm_cluster.weights.agent.hub import EXPECTED_SUFFIX
from vllm_cluster.weights.agent.layout import (
    Layout,
    Placed,
    adoption_key,
    check_space,
    write_file,
    written_bytes,
)
from vllm_cluster.weights.agent.state import Progress

_LOOK_S = 0.5


@dataclass(frozen=True)
class Wish:
    """A model and where to look for it, in order of preference.

    sources: {"kind": "directory", "path", "mode", "files"} for what is on this host, where files,
    if given, is the list that must be there ([{"path", "size", "sha256" or null}]); or
    {"kind": "download", "argv": [...], "into": DIR} for a command that fills DIR, resumes when run
    again, writes DIR.expected.json and says in its last line what went wrong; "phase" is the word
    for it, else "downloading".
    A revision that is placed and whole is not read again, unless `again`. With `identity` nothing
    else is placed. `secrets` are written to these files (0600) while a download runs; none is in
    its command line.
    """

    model: str
    revision: str
    sources: tuple[dict[str, Any], ...]
    reserve_bytes: int = 1 << 30
    mountpoint: str | None = None
    keep: int = 2
    me: str | None = None
    again: bool = False
    identity: str | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


def parse_wish(text: str) -> Wish:
    """Raises WeightsError in words."""
    try:
        value = json.loads(text)
        wish = Wish(**{**value, "sources": tuple(value["sources"])})
        kinds = {source["kind"] for source in wish.sources}
    except (ValueError, TypeError, KeyError) as exc:
        raise WeightsError(f"the list of sources cannot be read: {exc}") from exc
    if not kinds or kinds - {"directory", "download"}:
        raise WeightsError(f"sources of kinds {sorted(kinds)}; known: directory, download")
    return wish


def obtain(layout: Layout, wish: Wish) -> Placed:
    """Place the model from the first source that gives it whole. The caller holds the lock.

    Raises WeightsError with every source's reason when none does.
    """
    if wish.me:
        name_this_host(wish.me)
    key = adoption_key(wish.model, wish.revision)
    host = {"host": wish.me} if wish.me else {}
    progress = Progress(layout, key, model=wish.model, revision=wish.revision, **host)
    failures: list[WeightsError] = []
    there = placed_already(layout, wish.model, wish.revision)
    if there is not None and not wish.again:
        _done(layout, wish, progress, there)
        return there
    for source in wish.sources:
        try:
            placed = _from_one(layout, wish, source, progress)
        except WeightsError as exc:
            failures.append(exc)
            progress.value["notes"].append(str(exc))
            continue
        _done(layout, wish, progress, placed)
        return placed
    last = failures[0]
    if len(failures) > 1:
        told = "; ".join(
            f"{exc.file}: {exc.reason}" if exc.file else exc.reason for exc in failures
        )
        last = WeightsError(f"no source gave the model: {told}")
    progress.enter("failed", error=last.as_dict())
    raise last


def placed_already(layout: Layout, model: str, revision: str) -> Placed | None:
    """The copy that the revision leads to, when it is whole."""
    ref = layout.ref(model, revision)
    try:
        placed = layout.placed(ref.resolve().name) if ref.is_symlink() else None
    except WeightsError:
        return None
    return placed if placed is not None and glance(placed).ok else None


def _done(layout: Layout, wish: Wish, progress: Progress, placed: Placed) -> None:
    progress.enter(
        "done",
        identity=placed.manifest.identity,
        path=str(layout.ref(wish.model, wish.revision)),
        total_bytes=placed.manifest.total_bytes,
        have_bytes=placed.manifest.total_bytes,
    )


def _from_one(layout: Layout, wish: Wish, source: dict[str, Any], progress: Progress) -> Placed:
    expected = None
    if source["kind"] == "download":
        # How much it is only the download knows; on which disk is known before its first byte.
        check_space(
            layout, 0, reserve_bytes=0, mountpoint=wish.mountpoint, file=str(source["into"])
        )
        where, mode = Path(source["into"]), "move"
        listed = where.with_name(where.name + EXPECTED_SUFFIX)
        told = source.get("name", source["argv"][0])
        progress.enter(source.get("phase", "downloading"), **{"from": told})
        with _written(wish.secrets):
            _download(source["argv"], where, listed, progress)
        expected = read_expected(listed)
    else:
        where, mode = Path(source["path"]), source.get("mode", "auto")
        if source.get("files") is not None:
            expected = {item["path"]: (item["size"], item["sha256"]) for item in source["files"]}
    progress.enter("reading", **{"from": str(where)})

    def count(done: int, total: int) -> None:
        progress.value["total_bytes"] = total
        progress.count(done)

    adoption = Adoption(
        where,
        wish.model,
        wish.revision,
        mode=mode,
        expected=expected,
        reserve_bytes=wish.reserve_bytes,
        mountpoint=wish.mountpoint,
        keep=wish.keep,
        identity=wish.identity,
    )
    try:
        placed = adopt(layout, adoption, count)
    except WeightsError as exc:
        if mode == "move" and exc.file in (expected or {}):
            # The download, or the push, would take it for right and never fetch it again.
            (where / str(exc.file)).unlink(missing_ok=True)
        raise
    if source["kind"] == "download":
        listed.unlink(missing_ok=True)
    return placed


@contextmanager
def _written(secrets: dict[str, str]) -> Iterator[None]:
    for path, text in secrets.items():
        write_file(Path(path), text.encode(), 0o600)
    try:
        yield
    finally:
        for path in secrets:
            Path(path).unlink(missing_ok=True)


def _download(argv: list[str], where: Path, listed: Path, progress: Progress) -> None:
    """Run the command; what it has written so far is its progress. It ends when we are ended."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as told,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=told, stderr=told) as process,
    ):
        try:
            while process.poll() is None:
                if progress.value["total_bytes"] == 0 and listed.exists():
                    sizes = [size for size, _ in read_expected(listed).values()]
                    progress.value["total_bytes"] = sum(sizes)
                progress.count(written_bytes(where))
                time.sleep(_LOOK_S)
        finally:
            process.terminate()
        told.seek(0)
        lines = [line.strip() for line in told if line.strip()]
    if process.returncode:
        raise _told(lines) or WeightsError(
            lines[-1] if lines else f"{argv[0]} ended with {process.returncode}"
        )


def _told(lines: list[str]) -> WeightsError | None:
    """The error that our own download printed as JSON, without its container's host name."""
    for line in lines:
        with suppress(ValueError, LookupError, TypeError):
            error = json.loads(line)["error"]
            return WeightsError(error["reason"], file=error["file"])
    return None
