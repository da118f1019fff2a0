"""System, disks, units, files: the parts of a host that are no network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from vllm_cluster.facts.doctor.model import Disk, File, Model, Mount, System, Unit, Verified
from vllm_cluster.facts.doctor.sections import Section, Sections
from vllm_cluster.plan import containers, paths
from vllm_cluster.plan.generations import Kept
from vllm_cluster.plan.generations import read as read_generations
from vllm_cluster.plan.run_lock import Busy, busy

_DF_COLUMNS = 6


def system(sections: Sections) -> System:
    """See System."""
    said = dict(sections.pairs("system"))
    kib = {name: int(value.split()[0]) for name, value in said.items() if value.endswith(" kB")}
    uptime = said.get("uptime", "").split()
    return System(
        hostname=said.get("hostname", ""),
        kernel=said.get("kernel", ""),
        os=said.get("PRETTY_NAME", ""),
        os_id=said.get("ID", ""),
        boot_id=said.get("boot", ""),
        uptime_s=float(uptime[0]) if uptime else 0.0,
        cpus=int(said.get("cpus") or 0),
        memory_bytes=kib.get("MemTotal:", 0) * 1024,
        available_bytes=kib.get("MemAvailable:", 0) * 1024,
        ephemeral=_pair(said.get("ports", "")),
        reserved=ranges(said.get("reserved", "")),
        reboot_required="reboot" in said,
    )


def run(sections: Sections, clock_s: float) -> Busy | None:
    """Who held the lock of a run at the look's beginning or at its end."""
    for section in sections.named("run"):
        word, _, text = "".join(section.lines).partition(" ")
        if word == "held":
            return busy(text, round(clock_s))
    return None


def _pair(text: str) -> tuple[int, int]:
    numbers = [int(word) for word in text.split()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def ranges(text: str) -> tuple[tuple[int, int], ...]:
    """`6379-6387,8265` as pairs of first and last."""
    found = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found.append((int(first), int(last or first)))
    return tuple(found)


def disks(sections: Sections) -> dict[str, Disk]:
    """The file system of each path that was asked for."""
    return {section.argument: _disk(section) for section in sections.named("disk")}


def _disk(section: Section) -> Disk:
    words = section.lines[-1].split() if section.lines else []
    if len(words) != _DF_COLUMNS or not all(word.isdigit() for word in words[2:4]):
        return Disk(section.argument, hung=section.timed_out, error=" ".join(section.lines))
    size, free, inodes, free_inodes = (int(w) if w.isdigit() else 0 for w in words[2:])
    return Disk(section.argument, words[0], words[1], size, free, inodes, free_inodes)


def mounts(sections: Sections) -> tuple[Mount, ...]:
    """Every mount, in its order: a later one covers an earlier one."""
    found = []
    for line in sections.one("mounts").lines:
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) >= 6 and len(after) >= 3:
            options = frozenset(f"{before[5]},{after[2]}".split(","))
            found.append(Mount(_unescaped(before[4]), after[0], _unescaped(after[1]), options))
    return tuple(found)


def hung(sections: Sections) -> dict[str, str]:
    """Mount points that do not answer, or answer with an error, and its words."""
    rows = (line.partition("\t") for line in sections.one("hung").lines)
    return {target: words.rpartition(": ")[2] for target, _, words in rows}


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def units(sections: Sections, starts: Mapping[str, int]) -> dict[str, Unit]:
    """Each unit, with the last lines of its journal where the script brought them.

    `starts`: of units of ours, without the suffix, since they last held; where none is noted a unit
    has held. systemd's own count of other units only a person or a deploy takes back.
    """
    logs = {section.argument: section.lines for section in sections.named("journal")}
    ends = {section.argument: section.lines for section in sections.named("ends")}
    found = {}
    for block in sections.one("units").text.split("\n\n"):
        said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = said.get("Id", "")
        if name:
            unit = _unit(name, said, logs.get(name, ()), ends.get(name, ()))
            short = name.removesuffix(".service")
            ours = short in containers.EVERY
            row = max(0, starts.get(short, 0) - 1) if ours else unit.restarts
            found[name] = replace(unit, in_a_row=row)
    return found


def _unit(name: str, said: dict[str, str], log: tuple[str, ...], ends: tuple[str, ...]) -> Unit:
    return Unit(
        name=name,
        load=said.get("LoadState", ""),
        active=said.get("ActiveState", ""),
        sub=said.get("SubState", ""),
        file_state=said.get("UnitFileState", ""),
        need_reload=said.get("NeedDaemonReload") == "yes",
        result=said.get("Result", ""),
        exit_status=int(said.get("ExecMainStatus") or 0),
        restarts=int(said.get("NRestarts") or 0),
        active_since_s=_seconds(said.get("ActiveEnterTimestamp", "")),
        started_s=_seconds(said.get("ExecMainStartTimestamp", "")),
        changed_s=_seconds(said.get("StateChangeTimestamp", "")),
        drop_ins=tuple(said.get("DropInPaths", "").split()),
        log=log,
        ends=ends,
        queued=said.get("Job", "0") not in {"", "0"},
    )


def _seconds(stamp: str) -> float:
    return float(stamp[1:]) if re.fullmatch(r"@\d+(\.\d+)?", stamp) else 0.0


def files(sections: Sections) -> dict[str, File]:
    """The files of ours that exist."""
    found = {}
    for line in sections.one("files").lines:
        state, _, path = line.partition("|")
        words = state.split(" ", 5)
        if len(words) == 6:
            mode, user, group, size, changed, kind = words
            found[path] = File(path, mode, user, group, int(size), float(changed), kind)
    return found


def contents(sections: Sections) -> dict[str, str]:
    """Path to text of the files whose content is no secret."""
    return {section.argument: section.text for section in sections.named("file")}


def secrets(sections: Sections) -> dict[str, str]:
    """Path to the salted digest of a secret."""
    return {path: digest for digest, path in sections.pairs("secrets") if path}


def model(sections: Sections) -> Model:
    """What lies at the model's path."""
    section, content = sections.one("model"), sections.one("hashes")
    if section.lines == ("absent",) or not section.lines:
        return Model(hung=section.timed_out)
    sizes, kinds, hashes, manifest = {}, {}, {}, ""
    for line in (*section.lines, *content.lines):
        word, _, rest = line.partition(" ")
        if word == "entry":
            kind, size, name = rest.split(" ", 2)
            sizes[name] = int(size)
            if kind != "f":
                kinds[name] = kind
        elif word == "hash":
            digest, _, name = rest.partition(" ")
            hashes[name] = digest
        elif word == "manifest":
            manifest = rest
    return Model(
        True, section.timed_out, sizes, kinds, manifest, hashes, unhashed=content.timed_out
    )


def verified(sections: Sections) -> Verified:
    """What the weights' monthly reading left behind."""
    text = contents(sections).get(paths.WEIGHTS_VERIFIED, "")
    try:
        report = json.loads(text)
        copies = report["copies"]
        words = [line for copy in copies if not copy["ok"] for line in copy["lines"]]
        return Verified(float(report["ended"]), bool(report["ok"]), tuple(words))
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        return Verified()


def kept(sections: Sections) -> dict[str, frozenset[str]]:
    """Path to the identities of the generations that have the file as it lies there."""
    found: dict[str, frozenset[str]] = {}
    for identity, path in sections.pairs("kept"):
        found[path] = found.get(path, frozenset()) | {identity}
    return found


def generations(sections: Sections) -> Kept:
    """What `generation show` prints; nothing where a deploy never was, or where it failed."""
    try:
        return read_generations(sections.one("generations").text)
    except (ValueError, KeyError, TypeError):
        return Kept()
