"""Get a model onto the first host from the first source that has it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent.adopt import Adoption, adopt, adoption_key, read_expected
from vllm_cluster.weights.agent.errors import WeightsError, name_this_host
from vllm_cluster.weights.agent.hub import EXPECTED_SUFFIX
from vllm_cluster.weights.agent.layout import Layout, Placed
from vllm_cluster.weights.agent.state import Progress


@dataclass(frozen=True)
class Wish:
    """A model and where to look for it, in order of preference.

    sources: {"kind": "directory", "path", "mode"} for what is on this host, or
    {"kind": "download", "argv": [...], "into": DIR} for a command that fills DIR, resumes when run
    again, writes DIR.expected.json and says in the last line of stderr what went wrong.
    """

    model: str
    revision: str
    sources: tuple[dict[str, Any], ...]
    reserve_bytes: int = 1 << 30
    mountpoint: str | None = None
    keep: int = 2
    me: str | None = None


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
    for source in wish.sources:
        try:
            placed = _from_one(layout, wish, source, progress)
        except WeightsError as exc:
            failures.append(exc)
            progress.value["notes"].append(str(exc))
            continue
        progress.enter(
            "done",
            identity=placed.manifest.identity,
            path=str(layout.ref(wish.model, wish.revision)),
            total_bytes=placed.manifest.total_bytes,
            have_bytes=placed.manifest.total_bytes,
        )
        return placed
    last = failures[0]
    if len(failures) > 1:
        told = "; ".join(
            f"{exc.file}: {exc.reason}" if exc.file else exc.reason for exc in failures
        )
        last = WeightsError(f"no source gave the model: {told}")
    progress.enter("failed", error=last.as_dict())
    raise last


def _from_one(layout: Layout, wish: Wish, source: dict[str, Any], progress: Progress) -> Placed:
    expected = None
    if source["kind"] == "download":
        where, mode = Path(source["into"]), "move"
        progress.enter("downloading", **{"from": source["argv"][0]})
        _download(source["argv"])
        expected = read_expected(where.with_name(where.name + EXPECTED_SUFFIX))
    else:
        where, mode = Path(source["path"]), source.get("mode", "auto")
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
    )
    placed = adopt(layout, adoption, count)
    if source["kind"] == "download":
        where.with_name(where.name + EXPECTED_SUFFIX).unlink(missing_ok=True)
    return placed


def _download(argv: list[str]) -> None:
    done = subprocess.run(argv, stderr=subprocess.PIPE, check=False, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise WeightsError(lines[-1] if lines else f"{argv[0]} ended with {done.returncode}")
