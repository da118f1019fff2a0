"""Commands that look: at one model for a unit or a deploy, at the disk before a push."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from vllm_cluster.weights.agent.check import Findings, glance
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import Layout, Placed, check_space, written_bytes
from vllm_cluster.weights.agent.part import threads
from vllm_cluster.weights.agent.publish import pin, users_of
from vllm_cluster.weights.agent.state import all_states
from vllm_cluster.weights.manifest import MANIFEST_SUMMARY_CHARS, Manifest

Answer = tuple[int, "dict[str, Any]"]
NOT_WHOLE = 4


def check_model(layout: Layout, options: Namespace) -> Answer:
    """For ExecStartPre: the line it prints is what `systemctl status` shows."""
    name = f"{options.model} at {options.revision}"
    key, manifest, found = _the_copy(layout, options)
    identity = manifest.identity
    if options.identity and options.identity != identity:
        raise WeightsError(
            f"{name} on this host is {identity[:MANIFEST_SUMMARY_CHARS]},"
            f" the cluster's is {options.identity[:MANIFEST_SUMMARY_CHARS]}: place it again"
        )
    if found.ok and options.pin and not options.path:
        layout.make()
        pin(layout, key, options.pin)
    lines = found.sentences(manifest.chunk_bytes) or [f"{key}: whole"]
    answer = {
        "key": key, "identity": identity, "total_bytes": manifest.total_bytes,
        **found.as_dict(), "lines": lines,
    }  # fmt: skip
    if not found.ok:
        print("\n".join(lines), file=sys.stderr)
    return (0 if found.ok else NOT_WHOLE), answer


def look_at_model(layout: Layout, options: Namespace) -> Answer:
    """All that a deploy asks at every run: the copy, or why there is none, and what works on it."""
    copy: dict[str, Any] | None = None
    try:
        key, manifest, found = _the_copy(layout, options)
        copy = {
            "key": key, "identity": manifest.identity, "total_bytes": manifest.total_bytes,
            "users": users_of(layout, key), **found.as_dict(),
        }  # fmt: skip
        why = found.sentences(manifest.chunk_bytes)
    except WeightsError as exc:
        why = [exc.reason if exc.file is None else f"{exc.file}: {exc.reason}"]
    jobs = [
        state
        for state in all_states(layout)
        if (state.get("model"), state.get("revision")) == (options.model, options.revision)
    ]
    return 0, {"copy": copy, "why": why, "jobs": jobs, "lines": why or ["whole"]}


def _the_copy(layout: Layout, options: Namespace) -> tuple[str, Manifest, Findings]:
    if options.path:
        from vllm_cluster.weights.agent.aside import glance_aside  # noqa: PLC0415

        aside = _aside(options)
        manifest, stamps = aside.known()
        return aside.folder.name, manifest, glance_aside(aside, manifest, stamps)
    placed = _placed(layout, options)
    return placed.key, placed.manifest, glance(placed)


def _placed(layout: Layout, options: Namespace) -> Placed:
    ref = layout.ref(options.model, options.revision)
    if not ref.exists():
        name = f"{options.model} at {options.revision}"
        raise WeightsError(f"{name} is not placed: {ref} does not exist")
    placed = layout.placed(ref.resolve().name)
    if placed is None or placed.directory != ref.resolve():
        raise WeightsError(f"{ref} leads to {ref.resolve()}, which this tool did not place")
    return placed


def note_model(_layout: Layout, options: Namespace) -> Answer:
    """Read a model that others placed, once; or take from a host that did what it noted, or which
    bytes it found."""
    from vllm_cluster.weights.agent.aside import read_aside, take_notes  # noqa: PLC0415

    aside = _aside(options)
    if options.given:
        manifest, found = take_notes(aside, sys.stdin.read(), options.identity)
        lines = found.sentences(manifest.chunk_bytes)
        if not found.ok:
            print("\n".join(lines), file=sys.stderr)
        return (0 if found.ok else NOT_WHOLE), {"identity": manifest.identity, "lines": lines}
    if options.found:
        aside.withdraw(json.load(sys.stdin), options.identity)
        return 0, {"lines": []}
    manifest, stamps = read_aside(aside, threads(), telling(options.json))
    if options.identity and options.identity != manifest.identity:
        words = (
            f"{aside.directory} is {manifest.identity[:MANIFEST_SUMMARY_CHARS]},"
            f" the cluster's is {options.identity[:MANIFEST_SUMMARY_CHARS]}"
            f"{_what_differs(aside, manifest, options.identity)}"
        )
        print(words, file=sys.stderr)
        sums = {entry.path: entry.sha256 for entry in manifest.files}
        aside.withdraw(sums, options.identity)
        return NOT_WHOLE, {"ok": False, "found": sums, "lines": [words]}
    aside.note(manifest, stamps)
    answer = {
        "identity": manifest.identity, "total_bytes": manifest.total_bytes,
        "notes": {"manifest": manifest.encoded.decode(), "stamps": stamps},
        "lines": [manifest.identity],
    }  # fmt: skip
    return 0, answer


def _what_differs(aside: Any, found: Manifest, identity: str) -> str:
    """The files that are not those of the notes, when these are of the wanted model."""
    try:
        known, _ = aside.known()
    except (WeightsError, OSError):
        return ""
    if known.identity != identity:
        return ""
    was = {entry.path: entry.sha256 for entry in known.files}
    now = {entry.path: entry.sha256 for entry in found.files}
    names = sorted(path for path in was.keys() | now.keys() if was.get(path) != now.get(path))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"; other than when they were noted: {', '.join(names[:3])}{more}"


def _aside(options: Namespace) -> Any:
    from vllm_cluster.weights.agent.aside import Aside  # noqa: PLC0415

    if options.notes is None:
        raise WeightsError("--path needs --notes")
    return Aside(Path(options.path), Path(options.notes), options.model, options.revision)


def make_room(layout: Layout, options: Namespace) -> Answer:
    """Refuse a push that would not fit, before its first byte; what an earlier one left counts."""
    layout.make()
    options.into.mkdir(parents=True, exist_ok=True)
    here = written_bytes(options.into)
    check_space(
        layout,
        max(0, options.bytes - here),
        reserve_bytes=options.reserve_bytes,
        mountpoint=options.mountpoint,
        file=options.into.name,
    )
    return 0, {"here": here, "lines": []}


def telling(as_json: bool) -> Callable[[int, int], None]:
    """A progress line a second on stdout, for who asked for JSON."""
    last = monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if as_json and monotonic() - last >= 1.0:
            last = monotonic()
            print(json.dumps({"phase": "reading", "have_bytes": done, "total_bytes": total}),
                  flush=True)  # fmt: skip

    return tell
