"""From one generation to another on all hosts, judged, and back where it fails.

Whatever ends this process in the middle, every host goes back by itself: a unit on each waits for
the end of the run's lock, and another looks at every boot (`generation wait`, `generation boot`).
From the head's last word on, they go forward instead.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from vllm_cluster.facts.generations import TOOL
from vllm_cluster.operations.progress import starting, telling
from vllm_cluster.operations.served import VLLM
from vllm_cluster.plan import generations, last_words, paths
from vllm_cluster.plan.generations import Kept, Record

_PROBE = "docker exec vllm python3 /opt/vllm-cluster/probe.py"
# `rollback` brings no tools: that of an older deploy knows no such question.
_FREE = (
    f"said=$({TOOL} free {{}} 2>&1) || "
    'case $said in *"KeyError: \'free\'"*) ;; *) echo "$said"; exit 1 ;; esac'
)
_LOOK_S = 20
_LOG_LINES = 60
# In this order on all hosts: vLLM drains while the workers that it needs are there.
_ROUNDS = (VLLM, "ray-worker.service", "")


@dataclass(frozen=True)
class Switch:
    """What to switch to, and how it is judged. `units` by host; `group`: one vLLM over all hosts.

    `needs`: a command that must succeed on every host before anything changes. `note`: status and
    reason for the generation that is left, where a person leaves it. `undone_s`: what a head takes
    at most to go back by itself, to where its workers have seen it.
    """

    to: str
    record: Mapping[str, Any]
    head: str
    units: Mapping[str, tuple[str, ...]]
    group: bool
    gpus: int
    measure_s: int
    measure_requests: int
    slower_percent: float
    join_timeout_s: int
    start_timeout_s: int
    undone_s: int
    keep: int
    needs: str = ""
    note: tuple[str, str] | None = None


@dataclass
class _Hosts:
    """The hosts of a switch, and the two ways in which they are talked to."""

    by_name: dict[str, Host]
    say: Callable[[str], None]

    def call(self, name: str, command: str) -> tuple[bool, str]:
        """Run as root; whether it ended with 0, and what it said."""
        each = self.by_name[name]
        sudo = bool(each.data.get("_sudo"))
        try:
            good, out = each.run_shell_command(StringCommand(command), _sudo=sudo)
        except Exception as error:  # pyinfra's connectors raise what their libraries do
            return False, f"{type(error).__name__}: {error}"
        return good, "\n".join(line.line for line in out)

    def every(self, names: Iterable[str], command: str) -> str:
        """The same on several at once; the words of the first that failed, or nothing."""
        todo = list(names)
        with ThreadPoolExecutor(max(1, len(todo))) as pool:
            done = list(pool.map(lambda name: self.call(name, command), todo))
        for name, (good, words) in zip(todo, done, strict=True):
            if not good:
                return f"{name}: {_last(words)}"
        return ""


@dataclass
class _Times:
    """When there was no answer, in seconds of a clock that does not jump."""

    stopped: float | None = None
    back: list[float] = field(default_factory=list)


def run(state: State, leader: Host, switch: Switch, kept: Mapping[str, Kept]) -> str:
    """Switch; why it failed, or nothing. Ends with what serves, the new or the old."""
    hosts = _Hosts({n: _host(state, n) for n in switch.units}, leader.log)
    before = generations.serving(kept, switch.head)
    number = generations.number_of(kept, switch.to)
    found = (one.records.get(before or "") for one in kept.values())
    old = next((record for record in found if record is not None), None)
    if switch.needs:
        words = hosts.every(switch.units, switch.needs)
        if words:
            return f"generation {number} cannot come back, nothing was changed: {words}"
    words = hosts.every(switch.units, _FREE.format(switch.to))
    if words:
        return f"generation {number} cannot be put in place, nothing was changed: {words}"
    hosts.say(f"generation {number} shall follow generation {old.number if old else 'none'}")
    servers = [switch.head] if switch.group else list(switch.units)
    rates = {name: rate for name in servers if (rate := _measured(hosts, name, switch)) is not None}
    record = shlex.quote(json.dumps({**switch.record, "number": number}))
    words = hosts.every(switch.units, f"{TOOL} begin {switch.to} {before or 'none'} {record}")
    together = switch.group or (old is not None and bool(old.group))
    batches = [list(switch.units)] if together else [[name] for name in switch.units]
    reason = words and f"the switch could not begin: {words}"
    after: dict[str, float] = {}
    begun: list[list[str]] = []
    for batch in () if reason else batches:
        begun.append(batch)
        reason = _bring(hosts, switch, batch, rates, after)
        if reason:
            break
    if not reason:
        reason, known = _accepted(hosts, switch, after, before)
        if not known:
            return f"generation {number}: {reason}"
    if not reason:
        return ""
    untouched = [name for batch in batches[len(begun) :] for name in batch]
    turns = [turn for turn in (*reversed(begun), untouched) if turn]
    return _back(hosts, switch, f"generation {number}: {reason}", reason, old, turns=turns)


def _host(state: State, name: str) -> Host:
    found = state.inventory.get_host(name)
    assert isinstance(found, Host)  # noqa: S101
    return found


def _bring(
    hosts: _Hosts, switch: Switch, batch: Sequence[str], rates: Mapping[str, float],
    after: dict[str, float],
) -> str:  # fmt: skip
    """Stop the old on `batch`, start the new, judge it."""
    stopped = time.monotonic()
    hosts.say(f"{', '.join(batch)}: the old one ends; what it has begun may finish")
    reason = _halted(hosts, batch)
    reason = reason or hosts.every(batch, f"{TOOL} place {switch.to}")
    began = time.monotonic()
    reason = reason or _started(hosts, switch, batch)
    if reason:
        return reason
    now = time.monotonic()
    hosts.say(
        f"{', '.join(batch)}: a completion came after {now - stopped:.0f} s without an answer, "
        f"{now - began:.0f} s of them the start of the new one"
    )
    servers = [name for name in batch if "vllm" in switch.units[name]]
    for name in servers:
        reason = _judged(hosts, switch, name, rates, after)
        if reason:
            return reason
    return ""


def _halted(hosts: _Hosts, batch: Sequence[str]) -> str:
    """vLLM, workers, heads, wherever one is: the head may have moved."""
    for unit in _ROUNDS if len(batch) > 1 else ("",):
        reason = hosts.every(batch, f"{TOOL} halt {unit}".rstrip())
        if reason:
            return reason
    return ""


def _started(hosts: _Hosts, switch: Switch, batch: Sequence[str]) -> str:
    limit_s = switch.start_timeout_s + 120
    if not switch.group:
        with ThreadPoolExecutor(len(batch)) as pool:
            return next(filter(None, pool.map(lambda name: _vllm(hosts, name, limit_s), batch)), "")
    others = [name for name in batch if name != switch.head]
    reason = hosts.every([switch.head], f"{TOOL} start ray-head.service")
    reason = reason or hosts.every(others, f"{TOOL} start ray-worker.service")
    if reason:
        return reason
    wait = f"timeout {switch.join_timeout_s} {paths.SCRIPTS}/wait-for-gpus {switch.gpus}"
    with telling(hosts.by_name[switch.head], f"waiting for {switch.gpus} GPUs in Ray"):
        good, words = hosts.call(switch.head, wait)
    if not good:
        return (
            f"Ray on {switch.head} did not show {switch.gpus} GPUs within {switch.join_timeout_s} "
            f"s: {_last(words)}"
        )
    return _vllm(hosts, switch.head, limit_s)


def _vllm(hosts: _Hosts, name: str, limit_s: int) -> str:
    """Start vLLM on `name` and wait for its first completion."""
    good, mark = hosts.call(name, "journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p'")
    with starting(VLLM, hosts.by_name[name]):
        good, words = hosts.call(name, f"timeout {limit_s} {TOOL} start --wait {VLLM}")
    if good:
        return ""
    since = f"--after-cursor={shlex.quote(mark.strip())}" if mark.strip() else "-b"
    journal = f"journalctl --no-pager --output=cat --unit={VLLM} {since}"
    _, log = hosts.call(name, journal)
    for line in log.splitlines()[-_LOG_LINES:]:
        hosts.say(f"{name}: {VLLM}: {line}")
    return f"vLLM did not start on {name}: {_last(last_words.why(log.splitlines()) or words)}"


def _measured(hosts: _Hosts, name: str, switch: Switch) -> float | None:
    """Tokens per second of what serves on `name`; None where it does not, or cannot say."""
    if switch.measure_s == 0:
        return None
    good, _ = hosts.call(name, f"systemctl --quiet is-active {VLLM}")
    if not good:
        hosts.say(f"{name}: nothing answers that the new one could be compared with")
        return None
    rate, words = _rate(hosts, name, switch)
    if rate is None:
        hosts.say(f"{name}: the old one cannot be measured: {words}")
        return None
    hosts.say(f"{name}: {rate:.1f} tokens/s before")
    return rate


def _rate(hosts: _Hosts, name: str, switch: Switch) -> tuple[float | None, str]:
    load = f"{_PROBE} load --seconds {switch.measure_s} --requests {switch.measure_requests}"
    good, words = hosts.call(name, load)
    try:
        found = json.loads(words.splitlines()[-1]) if good else {}
        if found.get("failed"):
            return None, f"a completion failed: {_last(str(found['failed'][0]))}"
        return float(found["tokens_per_s"]), ""
    except (ValueError, KeyError, IndexError):
        return None, _last(words)


def _judged(
    hosts: _Hosts, switch: Switch, name: str, rates: Mapping[str, float], after: dict[str, float]
) -> str:
    """Completions under load, and their rate against the one from before.

    Where that could not be measured (a model that completes nothing, an old one that is down) the
    answer that the unit waited for suffices.
    """
    if name not in rates:
        return ""
    best = 0.0
    for _ in range(2):  # another load of the machine may fall into the first
        rate, words = _rate(hosts, name, switch)
        if rate is None:
            return f"completions under load fail on {name}: {words}"
        best = max(best, rate)
        slower = 100 * (1 - best / rates[name]) if rates[name] else 0.0
        if slower <= switch.slower_percent:
            after[name] = best
            hosts.say(f"{name}: {best:.1f} tokens/s, {rates[name]:.1f} before")
            return ""
    return (
        f"{best:.1f} tokens/s on {name}, {rates[name]:.1f} before: {slower:.0f} % slower, more "
        f"than upgrade.slower_percent {switch.slower_percent:g}"
    )


def _accepted(
    hosts: _Hosts, switch: Switch, after: Mapping[str, float], before: str | None
) -> tuple[str, bool]:
    """Forward on all hosts or on none; why not, and whether it is known how it ended.

    All others say that they can, then the head's one word decides, then the others hear of it.
    """
    measured = next(iter(after.values()), None)
    rate = "" if measured is None else f" {measured:.2f}"
    others = [name for name in switch.units if name != switch.head]
    words = hosts.every(others, f"{TOOL} accept {switch.to} {switch.undone_s}{rate}")
    if words:
        return f"it could not be accepted: {words}", True
    over = f"{TOOL} over {switch.to}{rate}"
    reason, known = _decided(hosts, switch, over)
    if reason:
        return reason, known
    words = hosts.every(others, over)
    if words:
        hosts.say(f"{words}; it serves, and the host notes so by itself")
    then = f"{TOOL} prune {switch.keep}"
    if switch.note is not None and before is not None:
        status, note = switch.note
        then = f"{TOOL} note {before} {status} {shlex.quote(note)} && {then}"
    words = hosts.every(switch.units, then)
    if words:
        hosts.say(f"old generations are not forgotten: {words}")
    return "", True


def _decided(hosts: _Hosts, switch: Switch, over: str) -> tuple[str, bool]:
    """The head's word. Where its answer is lost, it is asked how it ended."""
    good, words = hosts.call(switch.head, over)
    if good:
        return "", True
    asked, shown = hosts.call(switch.head, f"{TOOL} show")
    try:
        found = generations.read(shown) if asked else None
    except ValueError:
        found = None
    if found is None:
        return (
            f"{switch.head} was lost when it was to decide: {_last(words)}. Every host ends in the "
            f"way {switch.head} does, by itself or by the next run"
        ), False
    if found.pending is None and found.current == switch.to:
        return "", True
    return f"it could not be accepted: {switch.head}: {_last(words)}", True


def _back(
    hosts: _Hosts, switch: Switch, told: str, reason: str, old: Record | None,
    *, turns: Sequence[Sequence[str]],
) -> str:  # fmt: skip
    """Undo it turn by turn, wait until the old one serves, and say so.

    The turn that failed is the first: of replicas, the others answer until the old one does there.
    """
    hosts.say(f"{told}; going back")
    began = time.monotonic()
    servers = _servers(switch, old) if old is not None else []
    verdict = f"{TOOL} verdict failed {shlex.quote(reason)}"
    # At once on all hosts: none that has accepted stays with the new one if this run dies.
    for unit in _ROUNDS if len(turns) == 1 else ("none",):
        hosts.every(switch.units, f"{verdict} {unit}".rstrip())
    lost, late = "", ""
    # Whatever becomes of a turn: when this run ends, all that are left go back together.
    for turn in turns:
        words = hosts.every(turn, f"{TOOL} back")
        lost = lost or words
        limit_s = switch.start_timeout_s + 120
        waited = () if words else (name for name in turn if name in servers)
        silent = next((name for name in waited if not _awaited(hosts, name, limit_s)), "")
        late = late or silent
    if lost:
        return f"{told}. The way back failed on {lost}; the host goes back by itself"
    if old is None:
        return f"{told}. There was nothing to go back to"
    if not servers:
        ran = ", ".join(name for name, units in old.units.items() if "vllm" in units)
        return (
            f"{told}. The old one was put back, but its vLLM ran on {ran}, which is not in this "
            "run: without it nothing serves"
        )
    if late:
        return f"{told}. The old one was put back and does not answer yet on {late}"
    return f"{told}. The old one serves again, after {time.monotonic() - began:.0f} s"


def _servers(switch: Switch, old: Record) -> list[str]:
    """Hosts of this run on which vLLM of `old` answers."""
    units = old.units or switch.units
    return [name for name in units if "vllm" in units[name] and name in switch.units]


def _awaited(hosts: _Hosts, name: str, limit_s: int) -> bool:
    end = time.monotonic() + limit_s
    look = f"for i in $(seq {_LOOK_S}); do systemctl --quiet is-active {VLLM} && exit 0; "
    with starting(VLLM, hosts.by_name[name]):
        while time.monotonic() < end:
            good, _ = hosts.call(name, f"{look}sleep 1; done; exit 1")
            if good:
                return True
            time.sleep(0.5)
    return False


def _last(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no words"
