"""vLLM: started, healthy, and answering with a token; of replicas each, on a host of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.down import disabled, evidence, start, state_words
from vllm_cluster.doctor.ending import last_end
from vllm_cluster.doctor.finding import Finding, Step, by_hand, on
from vllm_cluster.doctor.first_cause import of_this_start
from vllm_cluster.doctor.starting import between, in_a_loop, lately, since, starting
from vllm_cluster.facts.doctor.model import HostFacts, Unit
from vllm_cluster.facts.doctor.script import COMPLETION_LIMIT_S
from vllm_cluster.plan.containers import VLLM

_UNIT = "vllm.service"
_OK, _UNAUTHORIZED = 200, 401
_RESTART = f"systemctl restart --no-block {_UNIT}"


def unit(case: Case) -> Iterator[Finding]:
    """The unit: running, starting, or down."""
    for host, facts in case.deployed():
        if VLLM in host.containers:
            yield from _unit(case, facts)


def _unit(case: Case, facts: HostFacts) -> Iterator[Finding]:
    found = facts.unit(_UNIT)
    if found.running or found.load in {"masked", "not-found"} or disabled(found):
        return
    # Once or twice is a start that went wrong.
    if found.active == "activating" and not in_a_loop(facts, found):
        yield _ending(facts, found) if between(found) else _starting(case, facts, found)
        return
    if found.active != "activating" and (starting(facts, found) or found.queued):
        yield _ending(facts, found)
        return
    yield Finding(
        "vllm.down", "vllm", facts.name,
        expected=f"{_UNIT} running",
        found=state_words(facts, found),
        evidence=evidence(facts, found),
        fix=start(case, facts.name, facts, found),
    )  # fmt: skip


def _starting(case: Case, facts: HostFacts, unit: Unit) -> Finding:
    if unit.sub == "start-pre":
        return _waiting(facts, unit)
    since_s = max(0.0, facts.clock_s - (unit.started_s or unit.changed_s))
    return Finding(
        "vllm.starting", "vllm", facts.name,
        expected="a completion",
        found=f"vLLM has been loading for {since_s:.0f} s of at most {case.plan.start_timeout_s}",
        evidence=of_this_start(unit.log, waited=False) or f"{_UNIT}: {unit.active} {unit.sub}",
        fix=by_hand("Wait; it answers by itself when the model is loaded"
                    + ", and compiled if it never was" * _first(facts, unit)),
    )  # fmt: skip


def _first(facts: HostFacts, unit: Unit) -> bool:
    """Whether no earlier start of this boot is known, which would have left compiled code."""
    ended = unit.restarts or last_end(unit) is not None
    return not ended and facts.recovered(_UNIT).starts < 2


def _ending(facts: HostFacts, unit: Unit) -> Finding:
    """It ends, or the host has just booted: what follows is not known yet."""
    return Finding(
        "vllm.waiting", "vllm", facts.name,
        expected=f"{_UNIT} running",
        found=since(facts, unit),
        evidence=of_this_start(unit.log) or f"{_UNIT}: {unit.active} {unit.sub}",
        fix=by_hand("Wait; it starts again by itself, unless somebody stops it"),
    )  # fmt: skip


def _waiting(facts: HostFacts, unit: Unit) -> Finding:
    """Before vLLM itself: for Docker, weights, this host's GPUs, and last for those of all hosts.
    The last line that this start has logged says for which."""
    last = of_this_start(unit.log)
    ray = re.search(r"waiting for (\d+) GPUs; (Ray .*)", last)
    return Finding(
        "vllm.waiting", "vllm", facts.name,
        expected=f"{ray[1]} GPUs in Ray, for which vLLM waits" if ray
        else "everything there that vLLM waits for before it starts",
        found=ray[2].replace("shows: ", "shows ") if ray else last or "it says nothing yet",
        evidence=last or f"{_UNIT}: {unit.active} {unit.sub}",
        fix=by_hand("Wait; it starts by itself when every host is there" if ray
                    else "Wait; it starts by itself when that is there"),
    )  # fmt: skip


def answers(case: Case) -> Iterator[Finding]:
    """A completion comes back. `/health` and `/v1/models` stay 200 on an engine that hangs."""
    for host, facts in case.seen():
        serves = VLLM in host.containers and facts.unit(_UNIT).running
        if serves and not facts.api.gave_a_token and not in_place.other_api(case, host, facts):
            yield _silent(facts)


def _silent(facts: HostFacts) -> Finding:
    name, api = facts.name, facts.api
    if api.health.status != _OK:
        return Finding(
            "vllm.health", "vllm", name,
            expected="200 of /health",
            found=f"{api.health.status}" if api.health.status else api.health.words,
            evidence=f"GET /health: {api.health.status or api.health.words}",
            fix=_restart(facts),
        )  # fmt: skip
    if api.completion.status == _UNAUTHORIZED:
        return Finding(
            "vllm.key", "vllm", name,
            expected="the API to take the key in its file",
            found="401: it was started with another one",
            evidence=f"POST /v1/completions: {api.completion.body[:200]}",
            fix=on(name, _RESTART),
        )  # fmt: skip
    if api.completion.status:
        return Finding(
            "vllm.refuses", "vllm", name,
            expected="a completion of one token",
            found=f"HTTP {api.completion.status}",
            evidence=" ".join(api.completion.body.split())[:300],
            fix=_restart(facts),
        )  # fmt: skip
    return _no_answer(facts)


def _no_answer(facts: HostFacts) -> Finding:
    waiting = facts.api.metrics.get("vllm:num_requests_waiting", 0)
    running = facts.api.metrics.get("vllm:num_requests_running", 0)
    counters = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    before, later = facts.api.metrics, facts.api.later
    works = any(name in before and later.get(name, 0) > before[name] for name in counters)
    busy = f"{running:.0f} requests running, {waiting:.0f} waiting"
    if waiting > 0 or works:
        return Finding(
            "vllm.busy", "vllm", facts.name,
            expected=f"a token within {COMPLETION_LIMIT_S} s",
            found=f"none yet: {busy}",
            evidence=f"vllm:num_requests_waiting {waiting:.0f}"
            + "; tokens come for other requests" * works,
            fix=by_hand("Run doctor again; if the same number waits for minutes, the engine hangs:"
                        f" on {facts.name}: {_RESTART}"),
            severity="warning",
        )  # fmt: skip
    return Finding(
        "vllm.hung", "vllm", facts.name,
        expected=f"a token within {COMPLETION_LIMIT_S} s",
        found=f"none, though /health says 200 ({busy})",
        evidence=f"POST /v1/completions: {facts.api.completion.words}",
        fix=_restart(facts),
    )  # fmt: skip


def _restart(facts: HostFacts) -> tuple[Step, ...]:
    """Not of what became active a moment ago: it may be about to end, and starts again itself."""
    began_s = facts.unit(_UNIT).active_since_s
    if lately(facts, began_s):
        return by_hand(f"Wait; it has served for only {max(0.0, facts.clock_s - began_s):.0f} s: "
                       "run doctor again in a minute")  # fmt: skip
    return on(facts.name, _RESTART)


CHECKS = (unit, answers)
