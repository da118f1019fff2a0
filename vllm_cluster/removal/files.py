"""Files: ours go, what was there before comes back, what somebody changed since stays."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator

from vllm_cluster.plan import paths
from vllm_cluster.plan.unmerge import Write, unmerged
from vllm_cluster.removal import shell
from vllm_cluster.removal.action import Action, Kept
from vllm_cluster.removal.look import Found

# Written by others of our own programs than the one that records.
_GO_ANYWAY = (paths.MEMBERS, paths.FIREWALL)
_CHANGED = "changed since it was written"


def decided(found: Found, late: tuple[str, ...]) -> Iterator[Action | Kept]:
    """Every recorded file but mount units, which go with their mounts, and `late`."""
    for path in found.record.first("file"):
        if path not in (*late, *_GO_ANYWAY) and not path.endswith(".mount"):
            yield from _file(found, path, "restore")
    for path in found.record.every("merge"):
        yield from _merged(found, path)


def late(found: Found, which: tuple[str, ...]) -> Iterator[Action | Kept]:
    """Those of `which` that were recorded."""
    for path in which:
        if path in found.record.first("file"):
            if path.startswith(paths.UNITS):
                name = path.rsplit("/", 1)[1]
                code = f"[ ! -e {path} ] || {{ {shell.no_unit(name)}; }}"
                yield Action("last", "stops", name, code)
            yield from _file(found, path, "last")


def _file(found: Found, path: str, phase: str) -> Iterator[Action | Kept]:
    assert phase in {"restore", "last"}  # noqa: S101
    before, now = found.record.first("file")[path], found.now.get(path, "absent")
    wrote = found.record.last("wrote").get(path, "")
    if now == "absent" or now == found.before.get(before):
        return
    if now in {"link", "directory"} or (wrote and now != wrote):
        yield Kept(path, _CHANGED if before == "absent" else f"{_CHANGED}; we had written over it")
        return
    where = shlex.quote(path)
    same = f'[ ! -e {where} ] || [ "$(sha256sum <{where} | cut -c1-64)" = {now} ]'
    check = f"{{ {same}; }} || {{ echo 'changed while this ran'; exit 9; }}"
    if before == "absent":
        yield Action("restore" if phase == "restore" else "last", "removes", path,
                     f"{check}; rm -f {where}")  # fmt: skip
    else:
        copy = shlex.quote(f"{paths.OWNED}/{before}")
        code = f"{check}; [ ! -e {copy} ] || cp -p {copy} {where}"
        yield Action("restore" if phase == "restore" else "last", "puts back", path, code)


def _merged(found: Found, path: str) -> Iterator[Action | Kept]:
    keys = found.record.every("merge")[path]
    if path not in found.contents:
        return
    now = found.contents[path]
    writes = [
        Write(found.copies.get(f"{key}.old"), found.copies[f"{key}.new"])
        for key in dict.fromkeys(keys)
        if f"{key}.new" in found.copies
    ]
    try:
        text = unmerged(path, now, writes)
    except ValueError as error:
        yield Kept(path, str(error))
        return
    if text == now:
        return
    where, temporary = shlex.quote(path), shlex.quote(f"{path}.vllm-cluster-new")
    digest = found.now.get(path, "")
    check = (
        f'[ "$(sha256sum <{where} | cut -c1-64)" = {digest} ] || '
        "{ echo 'changed while this ran'; exit 9; }"
    )
    if text is None:
        yield Action("restore", "removes", path, f"{check}; rm -f {where}")
        return
    encoded = base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()
    code = (
        f"{check}; cp -p {where} {temporary}; echo {encoded} | base64 -d >{temporary}; "
        f"sync {temporary}; mv -fT {temporary} {where}"
    )
    yield Action("restore", "puts back", path, code)
