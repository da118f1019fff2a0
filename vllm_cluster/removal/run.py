"""Hosts looked at and put back, over OpenSSH: all hosts together through each phase."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from vllm_cluster.operations import firewall
from vllm_cluster.plan import paths, ufw
from vllm_cluster.removal import look, shell
from vllm_cluster.removal.action import PHASES, Action, Phase, Removal
from vllm_cluster.removal.look import Found

LOOK_TIMEOUT_S = 120
# apt may wait for another apt, and takes a minute for Docker; vLLM ends its requests first.
_PHASE_TIMEOUT_S = 3600
_LEFT_ALONE = 9
_WAY_BACK_S = 45
_HOST = "the host"
_WORDS = {
    "stop": "units to stop",
    "restore": "things to remove or put back",
    "firewall": "rules to remove",
    "last": "packages, directories, accounts to remove",
}

# Runs argv on this machine with text as its standard input.
Runner = Callable[[list[str], str, float], subprocess.CompletedProcess[str]]
Say = Callable[[str, str], None]


@dataclass(frozen=True)
class Target:
    """A host: `argv` is `ssh … HOST`, to which a command is added, run as root by `root`."""

    name: str
    argv: tuple[str, ...]
    root: Callable[[str], str]

    def command(self, command: str) -> list[str]:
        """The argument list that runs `command` there as root."""
        return [*self.argv, self.root(command)]


@dataclass
class Outcome:
    """What was done on a host. `failed`: what could not be done, in the command's own words."""

    done: list[str] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


class UnreachableError(Exception):
    """A host did not answer, or not in whole sentences; the text is ssh's own."""


def run(argv: list[str], stdin: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine; a time-out ends with 255, as a dead connection does."""
    try:
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, errors="surrogateescape",
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer within {timeout_s:.0f} s")


def found_on(target: Target, runner: Runner = run) -> Found:
    """Look at a host. Raises UnreachableError."""
    done = runner(target.command("bash -s"), look.script(), LOOK_TIMEOUT_S)
    try:
        return look.parse(done.stdout.splitlines())
    except ValueError as error:
        raise UnreachableError(done.stderr.strip() or str(error)) from error


def script(actions: Iterable[Action]) -> str:
    """Bash that does all of `actions`, each by itself, and says how each went."""
    lines = [
        'act() { said=$(bash -ec "$2" 2>&1 </dev/null); code=$?; said=$(printf %s "$said" | '
        "tail -n4 | tr '\\n\\t' '; '); printf 'acted\\t%s\\t%s\\t%s\\n' \"$1\" $code \"$said\"; }"
    ]
    lines += [f"act {at} {shlex.quote(action.shell)}" for at, action in enumerate(actions)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Job:
    """A host, what was found there, and what is to be done."""

    target: Target
    found: Found
    removal: Removal
    outcome: Outcome = field(default_factory=Outcome)


def remove(jobs: Mapping[str, Job], say: Say, check: Callable[[], None]) -> dict[str, Outcome]:
    """Do it, host beside host, phase after phase; what fails on one stops nothing else.

    The hosts are in the order of their plan, the head first: its units end before the others'.
    `check` is called before each phase and raises where this run must not go on. The record of a
    host goes last, and only where nothing failed.
    """
    for phase in PHASES:
        for batch in _batches(phase, list(jobs.values())):
            check()
            with ThreadPoolExecutor(max_workers=max(1, len(batch))) as pool:
                list(pool.map(_phase, batch, [phase] * len(batch), [say] * len(batch)))
    for job in jobs.values():
        if job.removal.actions and not job.outcome.failed:
            _record(job)
    return {name: job.outcome for name, job in jobs.items()}


def _batches(phase: Phase, jobs: list[Job]) -> list[list[Job]]:
    """The head stops first; NFS servers are put back once their clients have let go."""
    if phase == "stop":
        return [batch for batch in (jobs[:1], jobs[1:]) if batch]
    servers = [job for job in jobs if _serves_files(job.found)]
    clients = [job for job in jobs if not _serves_files(job.found)]
    return [batch for batch in (clients, servers) if batch]


def _serves_files(found: Found) -> bool:
    return any("/exports.d/" in path for path in found.record.first("file"))


def _phase(job: Job, phase: Phase, say: Say) -> None:
    actions = [action for action in job.removal.actions if action.phase == phase]
    outcome, target = job.outcome, job.target
    # What still runs keeps its files and its firewall; the next call goes on from here.
    if any(what == _HOST or what.startswith("stops ") for what, _ in outcome.failed):
        return
    if phase == "firewall" and job.removal.actions:
        _other_firewalls(job)
    if not actions:
        return
    say(target.name, f"{_WORDS[phase]}: {len(actions)}")
    done = run(target.command("bash -s"), script(actions), _PHASE_TIMEOUT_S)
    answered = set()
    for line in done.stdout.splitlines():
        mark, *rest = line.split("\t")
        if mark == "acted" and len(rest) == 3:
            answered.add(int(rest[0]))
            _note(actions[int(rest[0])], int(rest[1]), rest[2], outcome)
    if len(answered) < len(actions):
        words = done.stderr.strip() or f"the connection ended with {done.returncode}"
        outcome.failed.append((_HOST, words))


def _note(action: Action, code: int, said: str, outcome: Outcome) -> None:
    text = f"{action.verb} {action.what}"
    if code == 0:
        outcome.done.append(text)
    elif code == _LEFT_ALONE:
        outcome.kept.append((action.left or action.what, said))
    else:
        outcome.failed.append((text, said or f"ended with {code}"))


def _other_firewalls(job: Job) -> None:
    """Our rules in ufw or firewalld, by the loader's own way back: a new SSH connection decides."""
    target, found, outcome = job.target, job.found, job.outcome
    tries = {
        "ufw": "".join(f"{line}\n" for line in ufw.changes(found.ufw, [])),
        "firewalld": "\n" if found.firewalld else "",
    }
    for backend, text in tries.items():
        if not text:
            continue
        tried = run(
            target.command(f"{firewall.LOADER} try {backend} {_WAY_BACK_S}"), text, _PHASE_TIMEOUT_S
        )
        done = tried
        if tried.returncode == 0:
            program, *rest = target.command(f"{firewall.LOADER} confirm")
            fresh = [program, "-o", "ControlMaster=no", "-o", "ControlPath=none", *rest]
            done = run(fresh, "", _WAY_BACK_S)
        what = f"removes our rules of {backend}"
        if done.returncode == 0:
            outcome.done.append(what)
        else:
            words = done.stderr.strip() or done.stdout.strip()
            hint = f"without them no SSH came through, or: {words}; they are back in force"
            outcome.failed.append((what, hint))


def _record(job: Job) -> None:
    removal, outcome = job.removal, job.outcome
    done = run(job.target.command("bash -es"), shell.record(removal.remains), LOOK_TIMEOUT_S)
    if done.returncode:
        outcome.failed.append((f"removes {paths.OWNED}", done.stderr.strip()))
    else:
        outcome.done.append(f"removes {paths.OWNED}" if not removal.remains else
                            f"keeps the record of {' and '.join(removal.remains)}")  # fmt: skip
