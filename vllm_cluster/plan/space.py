"""Whether the file systems of a host can take what is about to be put on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """`bytes_` that a step is going to put beneath `path`; `what` names it for people.

    `path` is an absolute path, or `docker` for the store that Docker has or would have. Nothing
    is needed once `present` (an absolute path, or an image of Docker) is on the host. `staging` is
    a glob beneath which an interrupted run may have left a part.
    """

    what: str
    path: str
    bytes_: int
    present: str = ""
    staging: str = ""


@dataclass(frozen=True)
class Room:
    """The file system under a path: where it is mounted, what is free, and what is there."""

    mounted_at: str
    path: str
    free_bytes: int
    total_bytes: int
    present: bool
    staged_bytes: int


def space_problems(
    needs: tuple[Need, ...], found: Mapping[str, Room], reserve_bytes: int
) -> list[str]:
    """One sentence for each file system that is too small, with the fix. `found` by Need.what.

    Needs on one file system add up. `reserve_bytes` must stay free on each, but on a small one
    (a lab's, a tmpfs) no more than a twentieth of it.
    """
    problems: list[str] = []
    by_mount: dict[str, list[Need]] = {}
    for need in needs:
        by_mount.setdefault(found[need.what].mounted_at, []).append(need)
    for mounted_at, here in by_mount.items():
        room = found[here[0].what]
        missing = {need: _left(need, found[need.what]) for need in here}
        total = sum(missing.values())
        reserve = min(reserve_bytes, room.total_bytes // 20)
        if room.free_bytes >= total + reserve:
            continue
        parts = [f"{_gib(size)} for {need.what}" for need, size in missing.items() if size]
        wanted = ", ".join([*parts, f"{_gib(reserve)} that must stay free"])
        short = total + reserve - room.free_bytes
        where = ", ".join(sorted({found[need.what].path for need in here}))
        problems.append(
            f"{mounted_at} ({where}) has {_gib(room.free_bytes)} free and needs {wanted}: "
            f"free {_gib(short)} there, or declare a larger disk under storage.disks"
        )
    return problems


def _left(need: Need, room: Room) -> int:
    return 0 if room.present else max(0, need.bytes_ - room.staged_bytes)


def _gib(size: int) -> str:
    if size < 2**30:
        return f"{-(-size // 2**20)} MiB"
    return f"{size / 2**30:.1f} GiB"
