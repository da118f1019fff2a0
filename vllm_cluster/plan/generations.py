"""Generations: what the units of all hosts were, are and shall be, and what follows from that.

A generation is everything that restarts a container when it changes. Its identity is a digest of
that, so that a description has one generation, whoever deploys it and how often.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

# Of a digest: enough to tell the generations of one cluster apart.
ID_DIGITS = 12
Status = Literal["switching", "good", "failed", "interrupted", "left"]
_IN_VAIN = {"failed", "interrupted"}


@dataclass(frozen=True)
class Record:
    """One generation as a host remembers it. `tokens_per_s`: None where nothing was measured.

    `since_s`: since when it has its status; in records of earlier versions, when the switch to it
    began. `good_s`: when it served; None where it never did, or was left by a person. `units` by
    host, `group`, `gpus`: as in Switch; empty and None in records of earlier versions.
    """

    number: int
    id: str
    status: str
    reason: str = ""
    since_s: float | None = None
    image: str = ""
    model: str = ""
    vllm: str = ""
    ray: str = ""
    tokens_per_s: float | None = None
    head: str = ""
    hosts: tuple[str, ...] = ()
    good_s: float | None = None
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group: bool | None = None
    gpus: int | None = None

    def text(self) -> str:
        """For people."""
        return f"generation {self.number} (vLLM {self.vllm}, {self.id})"


@dataclass(frozen=True)
class Kept:
    """What one host keeps: the identity that serves, of a switch that is not over, all records.

    `trees`: digests of the files of each generation. `checked`: those whose arguments vLLM takes.
    `phase`: how far the switch came.
    """

    current: str | None = None
    pending: str | None = None
    records: Mapping[str, Record] = field(default_factory=dict)
    trees: Mapping[str, str] = field(default_factory=dict)
    checked: tuple[str, ...] = ()
    phase: str = ""

    @property
    def serving(self) -> Record | None:
        """The record of what serves."""
        return self.records.get(self.current or "")


def read(text: str) -> Kept:
    """The one line of `generation show`; of a host without it, an empty one."""
    if not text.strip():
        return Kept()
    found: dict[str, Any] = json.loads(text)
    pending = found.get("pending") or {}
    return Kept(
        current=found.get("current"),
        pending=pending.get("to"),
        records={each["id"]: _record(each) for each in found.get("records", [])},
        trees=found.get("trees", {}),
        checked=tuple(found.get("checked", ())),
        phase=pending.get("phase", ""),
    )


def _record(found: dict[str, Any]) -> Record:
    return Record(
        number=int(found.get("number", 0)),
        id=str(found["id"]),
        status=str(found.get("status", "")),
        reason=str(found.get("reason", "")),
        since_s=found.get("since_s"),
        image=str(found.get("image", "")),
        model=str(found.get("model", "")),
        vllm=str(found.get("vllm", "")),
        ray=str(found.get("ray", "")),
        tokens_per_s=found.get("tokens_per_s"),
        head=str(found.get("head", "")),
        hosts=tuple(found.get("hosts", ())),
        good_s=found.get("good_s"),
        units={name: tuple(units) for name, units in found.get("units", {}).items()},
        group=found.get("group"),
        gpus=found.get("gpus"),
    )


def tree_digest(files: Mapping[str, tuple[str, str]]) -> str:
    """What `generation show` says of these files: path on the host -> mode (octal), content."""
    lines = [
        f"{path} {mode} {hashlib.sha256(body.encode()).hexdigest()}\n"
        for path, (mode, body) in sorted(files.items())
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def number_of(kept: Mapping[str, Kept], identity: str) -> int:
    """The number of a generation: the one that some host knows, or the next."""
    numbers = [each.number for one in kept.values() for each in one.records.values()]
    known = [one.records[identity].number for one in kept.values() if identity in one.records]
    return max(known) if known else max(numbers, default=0) + 1


def serving(kept: Mapping[str, Kept], head: str) -> str | None:
    """The identity to go back to: what the head serves, or some host where the head is new."""
    order = sorted(kept, key=lambda name: name != head)
    return next((kept[name].current for name in order if kept[name].current), None)


def decided(kept: Mapping[str, Kept], name: str) -> bool | str:
    """Whether the switch that `name` is in the middle of goes forward; or why that is not known.

    The head decides, and does so after all others have accepted.
    """
    mine = kept[name]
    if mine.phase != "accepted":
        return False
    record = mine.records.get(mine.pending or "")
    head = kept.get(record.head) if record is not None else None
    if head is None:
        where = record.head if record is not None and record.head else "its head"
        return (
            f"a switch was not finished, and {where} knows how it ended: run without --limit when "
            f"{where} answers, or wait until {name} has finished it by itself"
        )
    return head.pending is None and head.current == mine.pending


def switches(kept: Mapping[str, Kept], identity: str) -> bool:
    """Whether a host serves another generation. A host that serves none just joins."""
    return any(one.current not in {None, identity} for one in kept.values())


def moves(kept: Kept, head: str, hosts: Iterable[str]) -> bool:
    """Whether what serves on a host has another head, or runs on a host that is not in `hosts`."""
    now = kept.serving
    return now is not None and bool(now.head) and (now.head != head or not {*now.hosts} <= {*hosts})


def objection(kept: Mapping[str, Kept], identity: str) -> str:
    """Why a deploy must not bring `identity` unasked: it failed, or a person left it."""
    if not switches(kept, identity):
        return ""
    for one in kept.values():
        record = one.records.get(identity)
        if record is None or record.status not in {"failed", "left"}:
            continue
        what = "failed" if record.status == "failed" else "was left"
        again = (
            "to try it again as it is: the same run with `--data retry=yes` "
            "(make upgrade INV=… RETRY=yes)"
        )
        return (
            f"the description is {record.text()}, which {what}: {record.reason.rstrip('.')}. "
            f"Correct the description; {again}"
        )
    return ""


def target(kept: Mapping[str, Kept], head: str, number: int | None) -> Record | str:
    """The generation to roll back to, or why there is none."""
    now = serving(kept, head)
    if not any(one.records for one in kept.values()):
        return "nothing is deployed here yet; `pyinfra INVENTORY deploys/cluster.py` deploys"
    if now is None:
        return "no generation serves on any host; deploys/cluster.py makes one"
    records = {each.id: each for one in kept.values() for each in one.records.values()}
    wanted = [each for each in records.values() if each.number == number]
    if number is None:
        before = [e for e in records.values() if _served(e) and e.id != now]
        wanted = sorted(before, key=lambda each: each.number)[-1:]
    if not wanted:
        known = ", ".join(str(e.number) for e in sorted(records.values(), key=lambda e: e.number))
        asked = "an earlier one that served" if number is None else f"number {number}"
        return f"there is no generation to go back to, {asked}; kept are {known}"
    found = wanted[0]
    return _obstacle(kept, head, found, now) or found


def _served(record: Record) -> bool:
    """Also one that failed or was interrupted when it should come back."""
    return record.good_s is not None and record.status != "left"


def _obstacle(kept: Mapping[str, Kept], head: str, found: Record, now: str) -> str:
    """Why the hosts cannot run `found` as it was; empty where they can."""
    if found.id == now:
        return f"{found.text()} serves already"
    lacking = sorted(name for name, one in kept.items() if found.id not in one.trees)
    if lacking:
        return (
            f"{', '.join(lacking)} has not kept {found.text()}: new or made again since then; "
            "deploy the description that it came from"
        )
    if found.head != head:
        return (
            f"{found.text()} had its head on {found.head}; deploy the description that it came from"
        )
    gone = sorted(set(found.hosts) - set(kept))
    if gone:
        return f"{found.text()} ran on {', '.join(gone)} too, which is not in the description"
    return ""


def summary(
    kept: Mapping[str, Kept],
    head: str,
    *,
    serves: bool | None = None,
    runs: Mapping[str, float] | None = None,
) -> str:
    """One line for status; empty where nothing was ever deployed.

    `serves`: whether some vLLM is active; None where that is not known. `runs`: as in given_up.
    """
    now = serving(kept, head)
    records = {each.id: each for one in kept.values() for each in one.records.values()}
    if now is None or now not in records:
        return ""
    open_ = {name: one for name, one in sorted(kept.items()) if one.pending is not None}
    ahead = (one.records.get(one.pending or "") for one in open_.values())
    coming = [record for record in ahead if record is not None and record.id != now]
    halted = bool(coming) and any(one.phase != "begun" for one in open_.values())
    given = None if open_ or serves is not False else given_up(kept, runs or {})
    moving = coming if halted else [given] if given is not None else []
    told = [_moving(records[now], moving) if moving else _in_place(records[now], serves)]
    if serves is False:
        told.append("nothing serves now")
    if coming and not halted:
        told.append(f"a switch to {coming[0].text()} has begun")
    late = [name for name, one in open_.items() if one.pending == now]
    if late:
        told.append(f"{', '.join(late)} has not heard of it yet")
    different = sorted(n for n, one in kept.items() if one.current not in {None, now})
    if different and not open_:
        told.append(f"{', '.join(different)} has another: run the deploy again")
    return "; ".join(told)


def given_up(kept: Mapping[str, Kept], runs: Mapping[str, float]) -> Record | None:
    """What a run under way has switched to in vain: until it has ended it waits for the old one.

    `runs`: since when a run holds the lock of a host, 0 where that is not known.
    """
    for name, since_s in runs.items():
        for record in kept[name].records.values() if name in kept else ():
            ended = record.status in _IN_VAIN and record.id != kept[name].current
            if ended and since_s and (record.since_s or 0) >= since_s:
                return record
    return None


def setback(kept: Mapping[str, Kept], head: str) -> str:
    """When and why the newest generation does not serve; empty where it does, or may yet."""
    records = {each.id: each for one in kept.values() for each in one.records.values()}
    last = max(records.values(), key=lambda each: each.number, default=None)
    if last is None or last.id == serving(kept, head):
        return ""
    if last.status not in {"failed", "left", "interrupted"}:
        return ""
    told = f"generation {last.number} {last.status} because {last.reason}"
    # Who left one has said when.
    if last.status == "left" or last.since_s is None:
        return told
    return f"{datetime.fromtimestamp(last.since_s, UTC):%Y-%m-%d %H:%M UTC}: {told}"


def _in_place(record: Record, serves: bool | None) -> str:
    return f"serving {record.text()}" if serves else f"{record.text()} is in place"


def _moving(old: Record, coming: list[Record]) -> str:
    """What a switch does whose units have stopped: its record says so where it goes back."""
    failed = [each for each in coming if each.status in _IN_VAIN]
    if failed:
        return f"going back from generation {failed[0].number} to {old.text()}"
    return f"switching from generation {old.number} to {coming[0].text()}"
