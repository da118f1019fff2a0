"""What `down` does on a host, decided from what was found there. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vllm_cluster.operations import firewall
from vllm_cluster.plan import containers, paths
from vllm_cluster.removal import files, images, shell, weights
from vllm_cluster.removal.action import Action, Kept, Removal
from vllm_cluster.removal.look import Found

ENGINES = ("docker.io", "docker-ce", "docker-ce-cli", "docker-cli", "moby-engine")
_FIREWALL = f"{paths.UNITS}/{paths.FIREWALL_UNIT}"
# What brings the rules in force, and back: needed until they are gone for good.
LATE = (_FIREWALL, firewall.LOADER)
_UNIT_KINDS = (".service", ".timer", ".path", ".socket", ".target")


@dataclass(frozen=True)
class Options:
    """What the user wants gone beside our own."""

    keep_weights: bool = True
    packages: bool = False


def decide(found: Found, weights_directory: str, options: Options) -> Removal:
    """The actions in order, and what stays with its reason. Nothing where nothing is of ours."""
    actions: list[Action] = []
    kept: list[Kept] = []
    parts = (
        _units(found), _docker_objects(found), _weights(found, options),
        _state(found, weights_directory), files.decided(found, LATE), _docker(found, options),
        _other_units(found), _mounts(found), _kernel(found), _small(found),
        _firewall(found), files.late(found, LATE), _packages(found, options),
        _directories(found, weights_directory),
    )  # fmt: skip
    for part in parts:
        for item in part:
            if isinstance(item, Action):
                actions.append(item)
            else:
                kept.append(item)
    return Removal(tuple(actions), tuple(kept), _what_remains(found, options))


def _our_units(found: Found, *kinds: str) -> list[str]:
    """Units whose file we brought and that is there, in the order in which they are stopped."""
    ours = [
        path.rsplit("/", 1)[1]
        for path, before in found.record.first("file").items()
        if before == "absent" and path.startswith(f"{paths.UNITS}/") and path.endswith(kinds)
        and path.count("/") == paths.UNITS.count("/") + 1 and found.now.get(path) != "absent"
    ]  # fmt: skip
    order = [f"{name}.service" for name in containers.EVERY]
    known = {name: at for at, name in enumerate(order)}
    # What watches ends before what it watches.
    watches = (".timer", "@.service")
    return sorted(ours, key=lambda name: (not name.endswith(watches), known.get(name, 99), name))


def _units(found: Found) -> Iterator[Action]:
    for name in _our_units(found, *_UNIT_KINDS):
        if name != paths.FIREWALL_UNIT:
            # One after the other: vLLM ends before the Ray that it runs on.
            yield Action("stop", "stops", name, shell.no_unit(name))


def _docker_objects(found: Found) -> Iterator[Action]:
    for name in found.containers:
        yield Action("stop", "stops", f"container {name}", shell.no_container(name))
    if found.kept_images:
        # Before the images: what is ours and has no name beside such a one goes with it.
        ours = [name for name, whose in found.kept_images.items() if whose == "ours"]
        what = f"names of kept images: {', '.join(found.kept_images)}"
        yield Action("restore", "removes", what, images.no_kept_names(ours))
    if found.docker:
        for image in found.record.first("image"):
            yield Action("restore", "removes", f"image {image}", images.no_image(image))


def _weights(found: Found, options: Options) -> Iterator[Action | Kept]:
    record = found.record.first("weights")
    models = weights.models_of(record)
    units = [p for p in found.record.first("file") if p.startswith(paths.UNITS)]
    names = [p.rpartition("/")[2] for p in units if p.endswith(".service")]
    for path, size_bytes in found.weights_bytes.items():
        before, theirs = record.get(path, weights.THERE), found.weights_theirs.get(path, "")
        part = "our part of " if theirs or before == weights.THERE else ""
        name = f"weights {part}{path} ({size_bytes / 2**30:.1f} GiB)"
        if options.keep_weights:
            # The agent's own directories beside the models are not worth a line each.
            if "/." not in path:
                yield Kept(name, "--no-keep-weights removes them")
            elif path.endswith("/.pins"):
                code = weights.no_pins(path, names)
                yield Action("restore", "removes", f"notes of who uses the weights in {path}", code)
        else:
            code = weights.no_weights(path, before, models)
            yield Action("restore", "removes", name, code)
            if theirs:
                yield Kept(path, f"holds what is not ours: {theirs.strip()}")


def _state(found: Found, weights_directory: str) -> Iterator[Action]:
    if found.record.lines:
        spared = [weights_directory, *found.record.first("weights")]
        yield Action("restore", "removes", f"what is ours in {paths.STATE}", shell.no_state(spared))


def _docker(found: Found, options: Options) -> Iterator[Action | Kept]:
    """Its restart without our settings, or its end where it goes."""
    read = [*found.record.every("merge"), *found.record.first("file")]
    ours = [path for path in read if "/docker/" in path or "/docker.service.d/" in path]
    if found.docker and docker_goes(found, options):
        yield Action("restore", "stops", "docker.service", shell.STOP_DOCKER)
    elif found.docker and any(found.now.get(path) not in {"absent", None} for path in ours):
        yield Action("restore", "restarts", "docker.service", shell.RESTART_DOCKER)


def docker_goes(found: Found, options: Options) -> bool:
    """Whether Docker came with us, shall go, and holds nothing of anybody else."""
    ours = set(found.record.first("package")) & set(ENGINES) & set(found.installed)
    return options.packages and bool(ours) and not found.foreign


def _other_units(found: Found) -> Iterator[Action]:
    """Units that we found and only enabled or started."""
    ours = _our_units(found, "")
    for name, value in found.record.first("unit").items():
        enabled, _, active = value.partition(" ")
        files_ = found.record.first("file")
        if name in ours or f"{paths.UNITS}/{name}" in files_ or enabled in {"-", ""}:
            continue
        if (enabled, active) != ("enabled", "active"):
            text = f"{name} ({enabled}, {active})"
            yield Action("restore", "puts back", text, shell.unit_as_before(name, enabled, active))


def _mounts(found: Found) -> Iterator[Action | Kept]:
    for disk, value in found.record.first("disk").items():
        yield Kept(f"file system {value} on {disk}", "no file system is touched")
    for name in _our_units(found, ".mount"):
        yield Action("restore", "unmounts", name, shell.no_mount(name))


def _kernel(found: Found) -> Iterator[Action]:
    brought = found.record.last("set")
    for name, before in found.record.first("sysctl").items():
        old = "" if before == "-" else before
        code = shell.sysctl_as_before(name, brought.get(name, ""), old)
        yield Action("restore", "puts back", f"{name} = {old}", code)
    for path, size in found.record.first("shm").items():
        code = f"mount -o remount,size={int(size)} {path}"
        yield Action("restore", "puts back", f"{path} of {int(size) // 2**20} MiB", code)


def _small(found: Found) -> Iterator[Action | Kept]:
    for own, before in found.record.first("hostname").items():
        code = f'[ "$(hostname)" != {own} ] || hostnamectl set-hostname {shlex.quote(before)}'
        yield Action("restore", "puts back", f"hostname {before}", code)
    for name in found.record.first("hold"):
        yield Action("restore", "puts back", f"{name} (not held)", shell.no_hold(name))
    gpu = found.record.first("gpu")
    if "persistence" in gpu:
        code = "command -v nvidia-smi >/dev/null && nvidia-smi --persistence-mode=0 || true"
        yield Action("restore", "puts back", "GPU persistence mode (off)", code)
    if "mig" in gpu:
        yield Kept("MIG is off", f"it was {gpu['mig']} GPUs; `nvidia-smi -mig 1` brings it back")
    for kind, words in (("upgraded", "was {} before"), ("gone", "{} was removed by apt")):
        for name, value in found.record.first(kind).items():
            yield Kept(f"package {name}", words.format(value))


def _firewall(found: Found) -> Iterator[Action]:
    if found.table:
        yield Action("firewall", "removes", "table inet vllm_cluster", shell.NO_TABLE)


def _packages(found: Found, options: Options) -> Iterator[Action | Kept]:
    ours = found.record.first("package")
    names = [name for name in found.installed if name in ours]
    if not options.packages:
        if names:
            yield Kept(f"{len(names)} packages: {', '.join(names)}", "--packages removes them")
        return
    if found.foreign and set(names) & set(ENGINES):
        others = ", ".join(found.foreign[:5])
        yield Kept("Docker", f"it holds what is not ours: {others}")
        names = [name for name in names if name not in ENGINES]
    record = found.record
    if docker_goes(found, options):
        engine = record.first("engine")
        code = shell.docker_leftovers(engine, found.docker_root)
        yield Action("last", "removes", "Docker's data and its rules in the firewall", code)
    if names:
        code = shell.no_packages({name: ours[name] for name in names})
        yield Action("last", "removes", f"{len(names)} packages: {', '.join(names)}", code)
    accounts = {kind: list(record.first(kind)) for kind in ("user", "group")}
    if any(accounts.values()):
        names = sorted({*accounts["user"], *accounts["group"]})
        text = f"users and groups that came with packages: {', '.join(names)}"
        code = shell.no_accounts(accounts["user"], accounts["group"], list(ours))
        yield Action("last", "removes", text, code)


def _directories(found: Found, weights_directory: str) -> Iterator[Action]:
    record = found.record
    for path, value in record.first("mode").items():
        mode, _, owner = value.partition(" ")
        where = shlex.quote(path)
        code = f"[ ! -d {where} ] || {{ chmod {mode} {where}; chown {owner} {where}; }}"
        if path != paths.CONFIG and path not in record.first("directory"):
            yield Action("last", "puts back", f"{path} (mode {mode}, {owner})", code)
    if record.lines:
        yield Action("last", "reloads", "systemd", "systemctl daemon-reload")
        made = sorted(record.first("directory"), key=lambda path: -path.count("/"))
        spared = [weights_directory, *record.first("weights")]
        text = f"{len(made)} directories where they are empty, and {paths.CONFIG}"
        code = shell.no_directories(made, spared)
        yield Action("last", "removes", text, code, left="directories")


def _what_remains(found: Found, options: Options) -> tuple[Literal["packages", "weights"], ...]:
    """What a later `down` may still be asked to remove, so that the record of it stays."""
    remains: list[Literal["packages", "weights"]] = []
    ours = set(found.record.first("package")) & set(found.installed)
    if ours and (not options.packages or (found.foreign and ours & set(ENGINES))):
        remains.append("packages")
    if found.weights_bytes and options.keep_weights:
        remains.append("weights")
    return tuple(remains)
