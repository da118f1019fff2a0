"""What each command does: a layout and options in, an exit status and an answer out.

Modules that one command alone needs are imported by it: the others start in half the time.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent.check import Findings, glance, read_everything
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.job import parse_job
from vllm_cluster.weights.agent.layout import (
    Layout,
    Placed,
    adoption_key,
    job_lock,
    key_for,
    lock_holder,
    write_file,
    write_json,
)
from vllm_cluster.weights.agent.looks import NOT_WHOLE, telling
from vllm_cluster.weights.agent.part import Part, threads
from vllm_cluster.weights.agent.publish import pin, remove, unpin, users_of, write_stamps_read
from vllm_cluster.weights.agent.state import all_states, read_state
from vllm_cluster.weights.manifest import MANIFEST_SUMMARY_CHARS

Answer = tuple[int, "dict[str, Any]"]


def take_part(layout: Layout, options: Namespace) -> Answer:
    text = read_text(options.job)
    job = parse_job(text)
    key = key_for(job.model, job.identity)
    if options.detach:
        return detached(layout, key, text, [options.how, "--job"])
    with job_lock(layout, key):
        try:
            state = Part(layout, job).run(options.how)
        finally:
            forget_text(layout, key, options.job)
    return 0, {**state, "lines": [f"{job.me}: {state['path']} is placed"]}


def obtain_model(layout: Layout, options: Namespace) -> Answer:
    from vllm_cluster.weights.agent.obtain import obtain, parse_wish  # noqa: PLC0415

    text = read_text(options.wish)
    wish = parse_wish(text)
    key = adoption_key(wish.model, wish.revision)
    if options.detach:
        return detached(layout, key, text, ["obtain", "--wish"])
    with job_lock(layout, key):
        try:
            placed = obtain(layout, wish)
        finally:
            forget_text(layout, key, options.wish)
    return 0, {**_described(layout, placed), "lines": [placed.manifest.identity]}


def detached(layout: Layout, key: str, text: str, arguments: list[str]) -> Answer:
    from vllm_cluster.weights.agent import detach  # noqa: PLC0415

    layout.make()
    path = layout.jobs / f"{key}.job"
    if not detach.lives(layout, key):
        write_file(path, text.encode(), 0o600)
    state = detach.start(layout, key, ["--root", str(layout.root), *arguments, str(path)])
    word = "runs already" if state["attached"] else "started"
    return 0, {**state, "lines": [f"{key} {word}: {state.get('phase', '?')}"]}


def forget_text(layout: Layout, key: str, given: str) -> None:
    """Our own copy of a job carries the token: it goes with the job's end. A killed job's stays,
    the unit is started again with it."""
    if given == str(layout.jobs / f"{key}.job"):
        with suppress(FileNotFoundError):
            Path(given).unlink()


def download_model(_layout: Layout, options: Namespace) -> Answer:
    from vllm_cluster.weights.agent.hub import download  # noqa: PLC0415

    expected = download(
        options.repo,
        options.revision,
        options.into,
        exclude=options.exclude,
        reserve_bytes=options.reserve_bytes,
        workers=options.workers,
    )
    return 0, {"expected": str(expected), "lines": [str(expected)]}


def _found(layout: Layout, placed: Placed, found: Findings) -> Answer:
    lines = found.sentences(placed.manifest.chunk_bytes) or [f"{placed.key}: whole"]
    answer = {**_described(layout, placed), **found.as_dict(), "lines": lines}
    if not found.ok:
        print("\n".join(lines), file=sys.stderr)
    return (0 if found.ok else NOT_WHOLE), answer


def verify_models(layout: Layout, options: Namespace) -> Answer:
    """Every byte of the placed copies; `--report` keeps what was found, for whoever asks later."""
    copies: list[dict[str, Any]] = []
    lines: list[str] = []
    status, began = 0, time.time()
    for key in layout.placed_keys():
        if options.identity and not key.endswith("@" + options.identity[:MANIFEST_SUMMARY_CHARS]):
            continue
        code, answer = _verify_one(layout, key, as_json=options.json)
        copies.append(answer)
        lines += answer["lines"]
        status = max(status, code)
    if options.identity and not copies:
        raise WeightsError(f"{options.identity} is not placed here")
    if options.report is not None:
        report = {"began": began, "ended": time.time(), "ok": status == 0, "copies": copies}
        write_json(options.report, report)
    return status, {"copies": copies, "ok": status == 0, "lines": lines}


def _verify_one(layout: Layout, key: str, *, as_json: bool) -> Answer:
    try:
        placed = layout.placed(key)
    except WeightsError as exc:
        print(exc, file=sys.stderr)
        return NOT_WHOLE, {"key": key, "ok": False, "error": exc.as_dict(), "lines": [str(exc)]}
    if placed is None:
        return 0, {"key": key, "ok": True, "lines": [f"{key} was removed meanwhile"]}
    tell, total, done = telling(as_json), placed.manifest.total_bytes, 0

    def count(length: int) -> None:
        nonlocal done
        done += length
        tell(done, total)

    found = read_everything(placed, threads(), count)
    if not placed.directory.exists():
        return 0, {"key": key, "ok": True, "lines": [f"{key} was removed meanwhile"]}
    mended: set[str] = set()
    with suppress(OSError):  # a read-only root can be verified too
        mended = write_stamps_read(
            placed.directory, placed.manifest,
            bad=found.bad, read=found.stamps, noted=found.noted,
        )  # fmt: skip
    found.forget(mended)
    code, answer = _found(layout, placed, found)
    told = [f"{path}: was mended while this was read" for path in sorted(mended)]
    holder = lock_holder(layout, key)
    if code and holder is not None:
        told.append(f"{key}: process {holder} works on it; what it mends, the next reading sees")
    return code, {**answer, "lines": [*answer["lines"], *told]}


def list_models(layout: Layout, _options: Namespace) -> Answer:
    copies = []
    lines = []
    for key in layout.placed_keys():
        try:
            placed = layout.placed(key)
        except WeightsError as exc:
            copies.append({"key": key, "ok": False, "error": exc.as_dict()})
            lines.append(f"{key}: {exc}")
            continue
        if placed is not None:
            copy = {**_described(layout, placed), **glance(placed).as_dict()}
            copies.append(copy)
            lines.append(_copy_line(copy))
    return 0, {"copies": copies, "lines": lines}


def _copy_line(copy: dict[str, Any]) -> str:
    whole = "whole" if copy["ok"] else "NOT whole"
    users = ", ".join(copy["users"]) or "nobody"
    return (
        f"{copy['model']} {copy['revision']} {copy['identity'][:MANIFEST_SUMMARY_CHARS]}"
        f" {copy['total_bytes'] / 2**30:.2f} GiB {whole}, used by {users}"
    )


def _described(layout: Layout, placed: Placed) -> dict[str, Any]:
    manifest = placed.manifest
    return {
        "key": placed.key,
        "model": manifest.model,
        "revision": manifest.revision,
        "identity": manifest.identity,
        "total_bytes": manifest.total_bytes,
        "files": len(manifest.files),
        "path": str(layout.ref(manifest.model, manifest.revision)),
        "directory": str(placed.directory),
        "users": users_of(layout, placed.key),
    }


def show_jobs(layout: Layout, options: Namespace) -> Answer:
    if options.key:
        state = read_state(layout, options.key)
        if state is None:
            raise WeightsError(f"no job {options.key} on this host")
        return 0, {**state, "lines": [progress_line(state)]}
    states = all_states(layout)
    return 0, {"jobs": states, "lines": [progress_line(state) for state in states]}


def follow_job(layout: Layout, options: Namespace) -> Answer:
    from vllm_cluster.weights.agent import detach  # noqa: PLC0415

    state: dict[str, Any] = {}
    for state in detach.follow(layout, options.key):
        print(json.dumps(state) if options.json else progress_line(state), flush=True)
    return (0 if state["phase"] == "done" else 1), {"lines": [], "phase": state["phase"]}


def progress_line(state: dict[str, Any]) -> str:
    """One line: host, phase, bytes, rate, time left, from whom, who was passed by, the error."""
    total, have = state["total_bytes"], state["have_bytes"]
    parts = [
        f"{state.get('host', state['key'])}: {state['phase']}",
        f"{have / 2**30:.2f} of {total / 2**30:.2f} GiB",
    ]
    if state["phase"] == "fetching":
        parts.append(f"{state['rate_bytes_s'] / 1e6:.1f} MB/s from {state['from']}")
        if state["left_s"] is not None:
            parts.append(f"{state['left_s']:.0f} s left")
    parts += [f"passed by {name} ({why})" for name, why in state["passed_by"].items()]
    parts += state.get("complaints", [])[-1:]
    if state["error"]:
        parts.append(state["error"]["message"])
    return ", ".join(parts)


def stop_job(layout: Layout, options: Namespace) -> Answer:
    from vllm_cluster.weights.agent import detach  # noqa: PLC0415

    stopped = detach.stop(layout, options.key)
    return 0, {"stopped": stopped, "lines": ["stopped" if stopped else "nothing ran"]}


def remove_model(layout: Layout, options: Namespace) -> Answer:
    layout.make()
    remove(layout, options.key)
    return 0, {"removed": options.key, "lines": [f"removed {options.key}"]}


def pin_model(layout: Layout, options: Namespace) -> Answer:
    layout.make()
    pin(layout, options.key, options.user)
    return 0, {"users": users_of(layout, options.key), "lines": []}


def unpin_model(layout: Layout, options: Namespace) -> Answer:
    unpin(layout, options.key, options.user)
    return 0, {"users": users_of(layout, options.key), "lines": []}


def read_text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text()
    except OSError as exc:
        raise WeightsError(exc.strerror or str(exc), file=path) from exc
