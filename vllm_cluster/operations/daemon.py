"""Docker itself: installed, its daemon.json merged, its restart taken back when it fails."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.docker import DAEMON_JSON, DockerFact, DockerState
from vllm_cluster.facts.units import UnitStates
from vllm_cluster.operations import apt, files, packages, units
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.operations.units import Unit
from vllm_cluster.plan import docker_config, paths
from vllm_cluster.plan.docker_flags import Flag, conflicts

BEFORE = f"{paths.STATE}/daemon.json.before"
WRITTEN = f"{paths.STATE}/daemon.json.written"
DROP_IN = f"{paths.UNITS}/docker.service.d/vllm-cluster.conf"
_NEW = "/etc/docker/.daemon.json.new"
_NAME = "docker.service"
# dockerd lets the host forward, and makes tables of the firewall and directories of its own; none
# of these goes with its package.
_BEFORE_DOCKER = r"""
stores="/var/lib/docker /var/lib/containerd"
words() { printf '%s-' "$(tr '\n' ' ')"; }
own engine forward "$(cat /proc/sys/net/ipv4/ip_forward)" &&
own engine tables "$(nft list tables 2>/dev/null | sed 's/^table //; s/ /:/' | words)" &&
own engine directories "$(ls -d $stores /etc/cni /etc/cni/net.d 2>/dev/null | words)" &&
own engine modes "$(stat -c %n=%a $stores 2>/dev/null | words)" &&
own engine full "$(find $stores -mindepth 1 -maxdepth 1 -printf '%h\n' 2>/dev/null |
  sort -u | words)"
""".strip()


@dataclass(frozen=True)
class Docker:
    """Docker as it shall be.

    `settings` are keys of daemon.json; `defaults` those that count only where the user has
    chosen nothing. `drop_in` is the text of a drop-in for docker.service, or None.
    `repository` brings docker-ce; None installs the distribution's docker.io. `nvidia` adds the
    runtime as nvidia-ctk writes it.
    """

    cluster: str
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    drop_in: str | None
    repository: apt.RepositoryFor | None
    nvidia: bool


@operation()
def configured(wanted: Docker) -> Generator[StringCommand, None, None]:
    """Merge our settings into daemon.json, then install Docker where it is missing.

    In this order, so that it starts once, with the right settings. What would keep dockerd from
    starting is found before anything is written.
    """
    have = host.get_fact(DockerFact)
    _report(have)
    old = (have.config or b"").decode(errors="replace")
    words, new = _planned(have, wanted, old)
    if words:
        yield refuse(words)
        return
    merged = File(new, mode=have.config_mode, ours=False)
    place: dict[str, File | Directory] = {DAEMON_JSON: merged}
    if wanted.drop_in is not None:
        place[DROP_IN] = File(wanted.drop_in)
    differences = docker_config.changes(old, new)
    for line in differences:
        host.log(f"{DAEMON_JSON}: {line}")
    ended = _ended(have, new) if differences else []
    if ended:
        host.log(f"Docker restarts for that, and {', '.join(ended)} with it")
    if differences and have.validates:
        yield _validated(new)
    if differences:
        yield _kept(have, merged)
    yield from files.place._inner(wanted=place)
    if not have.engine:
        yield from _installed(wanted)
    elif not have.cli:
        yield from packages.install(["docker-cli"])


@operation()
def running(drop_in: bool) -> Generator[StringCommand, None, None]:
    """Let Docker run with its configuration, now and at every boot.

    Where it does not start with the new daemon.json, the old one comes back and Docker with it.
    """
    files_read = [DAEMON_JSON, *([DROP_IN] if drop_in else [])]
    found = host.get_fact(UnitStates, units=[_NAME], files={_NAME: files_read})[_NAME]
    settled = found.active == "active" and found.file_state == "enabled"
    if settled and not found.newer_files and not found.need_reload:
        host.noop(f"{_NAME}: running as configured")
    elif settled and found.newer_files:
        host.log(f"{_NAME}: started before {', '.join(found.newer_files)} changed")
        yield StringCommand(_restart())
    else:
        yield from units.active._inner(units=[Unit(_NAME, files=tuple(files_read))])


def _planned(have: DockerState, wanted: Docker, old: str) -> tuple[str, str]:
    """(why this host cannot have it, the new daemon.json)."""
    words = _obstacle(have, wanted)
    if words:
        return words, ""
    try:
        before = docker_config.parsed(old)
        settings, defaults = _without_flags(have, wanted)
        new = docker_config.merged(old, settings, defaults)
    except ValueError as error:
        return f"{DAEMON_JSON} is {error}; mend it and run again", ""
    for flag in conflicts(have.flags, {*before, *docker_config.parsed(new)}):
        return _twice(flag), ""
    runtime = docker_config.unknown_default_runtime(new)
    if runtime:
        return (
            f"{DAEMON_JSON} names the default runtime {runtime!r}, which nothing there defines: "
            "dockerd would not start; define it under runtimes, or take default-runtime out"
        ), ""
    return "", new


def _obstacle(have: DockerState, wanted: Docker) -> str:
    if "snap" in have.packages:
        return (
            "Docker comes from a snap here, which sees neither the weights nor the GPUs; "
            "`snap remove docker`, and run again"
        )
    if "podman-docker" in have.packages:
        return "the command docker is podman's here; `apt-get remove podman-docker`, and run again"
    root = wanted.settings.get("data-root")
    others = [one.name for one in have.containers if not one.ours]
    if root and have.data_root and have.data_root != root and others:
        return (
            f"Docker's data lies in {have.data_root}, and {', '.join(others)} with it; in {root} "
            "they would be gone; move them first, or leave docker.data_root out"
        )
    return ""


def _without_flags(have: DockerState, wanted: Docker) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our settings and defaults, without those that a flag already gives as we want them."""
    given = {flag.key: flag.value for flag in have.flags}
    every = {**wanted.settings, **(_nvidia(have) if wanted.nvidia else {})}
    settings = {k: v for k, v in every.items() if given.get(k) != v}
    chosen = {"log-driver", "log-opts"} & set(given)
    defaults = {} if chosen else dict(wanted.defaults)
    return settings, defaults


def _nvidia(have: DockerState) -> dict[str, Any]:
    """The runtime, in the words of nvidia-ctk. Raises ValueError where it has none."""
    if have.with_nvidia is None:
        raise ValueError("to carry the nvidia runtime, but nvidia-ctk is missing (deploys/gpu.py)")
    told = docker_config.parsed(have.with_nvidia.decode(errors="replace"))
    if "nvidia" not in told.get("runtimes", {}):
        raise ValueError("not what `nvidia-ctk runtime configure --dry-run` can read")
    return {"runtimes": {"nvidia": told["runtimes"]["nvidia"]}}


def _twice(flag: Flag) -> str:
    where = "its ExecStart" if flag.source == "docker.service" else flag.source
    return (
        f"docker.service starts dockerd with {flag.text} ({where}), and {DAEMON_JSON} has, or "
        f"needs, {flag.key}: dockerd does not start with both; take the flag out there"
    )


def _report(have: DockerState) -> None:
    for one in have.containers:
        if one.ports:
            host.log(
                f"the container {one.name} publishes {', '.join(one.ports)}: Docker forwards "
                "that past the firewall's rules for incoming packets"
            )
        if one.restart not in {"", "no"}:
            host.log(
                f"the container {one.name} restarts by Docker's own policy ({one.restart}); "
                "the cluster's are started by systemd alone"
            )


def _ended(have: DockerState, new: str) -> list[str]:
    """Other people's containers that a restart of Docker ends."""
    if docker_config.parsed(new).get("live-restore") is True:
        return []
    return [one.name for one in have.containers if one.running and not one.ours]


def _validated(new: str) -> StringCommand:
    check = f"dockerd --validate --config-file={_NEW}"
    return StringCommand(
        # daemon.json may hold a proxy's password, and be for root alone.
        f"mkdir -p /etc/docker && umask 077 && cat > {_NEW} && {{ out=$({check} 2>&1); code=$?; "
        f'rm -f {_NEW}; [ $code = 0 ] || {{ echo "$out" >&2; exit 1; }}; }}',
        _stdin=new,
    )


def _kept(have: DockerState, merged: File) -> StringCommand:
    """The way back of this one change: what was there, and a digest of what we are to write."""
    save = f"cp -p {DAEMON_JSON} {BEFORE}" if have.config is not None else f"rm -f {BEFORE}"
    return StringCommand(
        f"mkdir -p {paths.STATE} && {save} && echo '{merged.sha256}  {DAEMON_JSON}' > {WRITTEN}"
    )


def _installed(wanted: Docker) -> Generator[StringCommand, None, None]:
    if wanted.repository is None:
        # Debian 13 has the command in a package of its own, which docker.io only recommends.
        yield from packages.install(["docker.io"], optional=["docker-cli"], before=_BEFORE_DOCKER)
        return
    trusted = yield from apt.repository(wanted.repository, wanted.cluster)
    if trusted:
        names = ["docker-ce", "docker-ce-cli", "containerd.io"]
        yield from packages.install(names, before=_BEFORE_DOCKER)


def _restart() -> str:
    """Restart Docker; where it fails, take back what we wrote, never what somebody wrote since."""
    undo = f"if [ -e {BEFORE} ]; then cp -p {BEFORE} {DAEMON_JSON}; else rm -f {DAEMON_JSON}; fi"
    return (
        f"systemctl daemon-reload; systemctl restart {_NAME} || {{ "
        f"journalctl --no-pager --output=cat --lines=20 --unit={_NAME} >&2; "
        f"if sha256sum --check --status {WRITTEN} 2>/dev/null; then {undo}; "
        f"systemctl reset-failed {_NAME}; systemctl restart {_NAME}; "
        f"echo '{DAEMON_JSON} is as before, and Docker runs with it' >&2; "
        f"else echo '{DAEMON_JSON}, or what else {_NAME} reads, was changed by somebody else: "
        f"mend it there and run again' >&2; fi; exit 1; }}"
    )
