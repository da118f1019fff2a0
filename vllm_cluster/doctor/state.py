"""The state of a cluster on one screen: what runs where, and how it is."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any

from vllm_cluster.doctor.ending import end_of
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.finding import BY_HAND
from vllm_cluster.doctor.reach import ANSWER_TIMEOUT_S
from vllm_cluster.doctor.starting import in_a_row
from vllm_cluster.doctor.under_way import RUN
from vllm_cluster.facts.doctor.model import HostFacts, Unit
from vllm_cluster.facts.doctor.script import unit_names
from vllm_cluster.plan import generations
from vllm_cluster.plan.containers import VLLM
from vllm_cluster.plan.last_words import cut

_VLLM = f"{VLLM}.service"
# Letters on one line: of a reason, of what else may go on and on, of what was expected or found.
_WORDS, _LINE, _SIDE = 120, 200, 80
# Of a unit whose container runs, also while vLLM drains.
_UP = {"start", "start-post", "running", "reload", "stop", "stop-sigterm"}
_RANK = re.compile(r"rank (\d+) in world size \d+ is assigned .*?PP rank (\d+),.*?TP rank (\d+)")
_SPEAKER = re.compile(r"pid=\d+, ip=([\d.]+)")


@dataclass(frozen=True)
class Placed:
    """A rank where vLLM's own log has it, and where the plan has it."""

    rank: int
    pp_rank: int
    tp_rank: int
    planned: str
    found: str


def ranks(examination: Examination) -> list[Placed]:
    """Ranks of the plan with the host that vLLM names for each; empty where none runs, or it has
    not said."""
    plan = examination.case.plan
    found = {name: _named(examination, name) for name in plan.hosts}
    # A replica has ranks of its own.
    log = {r: r.host if plan.replicas > 1 else plan.head for r in plan.ranks}
    return [Placed(r.rank, r.pp_rank, r.tp_rank, r.host, found[log[r]].get(r.rank, ""))
            for r in plan.ranks]  # fmt: skip


def _named(examination: Examination, name: str) -> dict[int, str]:
    """Rank -> host, by the log of the vLLM that runs on `name`."""
    facts = examination.look.facts.get(name)
    if facts is None or facts.unit(_VLLM).sub not in _UP:
        return {}
    hosts = {host.address: host.name for host in examination.case.plan.hosts.values()}
    found: dict[int, str] = {}
    for line in facts.rank_lines:
        match = _RANK.search(line)
        if match:
            speaker = _SPEAKER.search(line)
            found[int(match[1])] = hosts.get(speaker[1], speaker[1]) if speaker else name
    return found


def exit_code(examination: Examination) -> int:
    """Doctor's; and 1 before the first deploy, where nothing is wrong and nothing serves."""
    return examination.exit_code or (0 if examination.case.deployed_somewhere else 1)


def to_json(examination: Examination) -> dict[str, Any]:
    """Everything as plain values."""
    plan = examination.case.plan
    apis = [_api(examination, name) for name, host in plan.hosts.items() if VLLM in host.containers]
    return {
        "cluster": plan.cluster,
        "model": plan.model_name,
        "layout": f"TP={plan.tensor} x PP={plan.pipeline}",
        "exit_code": exit_code(examination),
        "deployed": examination.case.deployed_somewhere,
        "hosts": {name: _host(examination, name) for name in plan.hosts},
        "generation": _generation(examination),
        "ranks": [placed.__dict__ for placed in ranks(examination)],
        "api": next(api for api in apis if api["host"] == plan.head),
        "apis": apis,
        "warnings": _warnings(examination),
        "first_cause": next(
            (f.to_json() for f, why in examination.findings if why is None
             and f.severity != "warning"), None),
    }  # fmt: skip


def _api(examination: Examination, name: str) -> dict[str, Any]:
    """The API of a host that serves: the head's, or of replicas each."""
    plan, facts = examination.case.plan, examination.look.facts.get(name)
    metrics = facts.api.metrics if facts else {}
    return {
        "host": name,
        "address": f"http://{plan.hosts[name].address}:{plan.api_port}/v1",
        "answers": facts is not None and facts.api.gave_a_token,
        "running": metrics.get("vllm:num_requests_running"),
        "waiting": metrics.get("vllm:num_requests_waiting"),
        "kv_cache_used": metrics.get("vllm:kv_cache_usage_perc"),
        "generated_tokens": metrics.get("vllm:generation_tokens_total"),
    }


def _warnings(examination: Examination) -> int:
    return sum(finding.severity == "warning" for finding, _ in examination.findings)


def _generation(examination: Examination) -> dict[str, Any]:
    kept = {name: facts.generations for name, facts in examination.look.facts.items()}
    records = {each.id: each for one in kept.values() for each in one.records.values()}
    head, serves = examination.case.plan.head, _serves(examination)
    cut_off = bool(serves) and _cut_off(examination)
    runs = {name: facts.run.since_s for name, facts in examination.look.facts.items() if facts.run}
    text = generations.summary(kept, head, serves=None if cut_off else serves, runs=runs)
    if text and cut_off:
        text += "; the API does not answer"
    return {
        "text": text,
        "setback": generations.setback(kept, head),
        "serving": {name: one.serving.number if one.serving else None
                    for name, one in kept.items()},
        "kept": [
            {"number": r.number, "id": r.id, "status": r.status, "reason": r.reason,
             "since_s": r.since_s, "image": r.image, "vllm": r.vllm, "ray": r.ray,
             "tokens_per_s": r.tokens_per_s}
            for r in sorted(records.values(), key=lambda each: each.number)
        ],
    }  # fmt: skip


def _serves(examination: Examination) -> bool | None:
    """Whether vLLM is active on some host: a busy one may keep us waiting. None: the head's is not
    known."""
    if any(facts.unit(_VLLM).running for facts in examination.look.facts.values()):
        return True
    return None if examination.case.head is None else False


def _cut_off(examination: Examination) -> bool:
    """Whether no vLLM answers while a host is silent, which an active one may lack."""
    look = examination.look
    return bool(look.silent) and not any(one.api.gave_a_token for one in look.facts.values())


def _host(examination: Examination, name: str) -> dict[str, Any]:
    plan = examination.case.plan
    facts = examination.look.facts.get(name)
    if facts is None:
        return {"seen": False, "words": examination.look.silent[name].words.splitlines()[-1]}
    return {
        "seen": True,
        # Of what broke off nobody knows.
        "deployed": facts.deployed or not facts.whole,
        "role": plan.hosts[name].role,
        "address": plan.hosts[name].address,
        "uptime_s": round(facts.system.uptime_s),
        "memory_free_bytes": facts.system.available_bytes,
        "memory_bytes": facts.system.memory_bytes,
        "units": {unit: _unit(facts, facts.unit(unit)) for unit in unit_names(plan.hosts[name])},
        "image": facts.docker.image_id[:19] or "missing",
        "weights": _weights(examination, facts),
        "ray_gpus": _ray_gpus(examination, name),
        "gpus_planned": plan.hosts[name].gpus,
        "gpus": [
            {"index": g.index, "name": g.name, "used_bytes": g.used_bytes,
             "memory_bytes": g.memory_bytes, "utilization": g.utilization,
             "temperature_c": g.temperature_c}
            for g in facts.gpus.cards
        ],
    }  # fmt: skip


def _unit(facts: HostFacts, unit: Unit) -> dict[str, Any]:
    noted = facts.recovered(unit.name)
    end = end_of(facts, unit)
    # The ends are read after the states: one that came between is of a state not seen yet.
    if end and unit.active in {"active", "activating"} and end.time_s > unit.changed_s + 1:
        end = None
    return {
        "state": f"{unit.active} ({unit.sub})",
        "since_s": _ago(facts, unit.changed_s),
        "restarts": in_a_row(facts, unit),
        "note": noted.gave_up or _often(noted.often(facts.clock_s)) or "".join(noted.watchdog[-1:]),
        "ended_s_ago": _ago(facts, end.time_s) if end else None,
        "last_end": end.text() if end else "",
    }


def _ago(facts: HostFacts, time_s: float) -> int | None:
    """Seconds since then by the host's clock; None where never, or its clock was set back since."""
    # A look reads the clock first: what changes while it goes on has just changed.
    if not time_s or time_s > facts.clock_s + ANSWER_TIMEOUT_S:
        return None
    return max(0, round(facts.clock_s - time_s))


def _often(reasons: tuple[str, ...]) -> str:
    often = f"started again {len(reasons)} times in 24 h, the last time because: "
    return often + reasons[-1] if reasons else ""


def _weights(examination: Examination, facts: HostFacts) -> str:
    if facts.model.hung:
        return "no answer"
    if not facts.model.present:
        return "missing"
    size = sum(facts.model.sizes.values())
    bad = any(f.plane == "model" and f.host == facts.name for f, _ in examination.findings)
    read_s = _ago(facts, facts.verified.ended_s)
    read = f", every byte read {_span(read_s)} ago" if read_s is not None else ""
    return f"{'damaged' if bad else 'whole'}, {size / 2**30:.1f} GiB{read}"


def _ray_gpus(examination: Examination, name: str) -> int | None:
    plan = examination.case.plan
    head = examination.look.facts.get(plan.head)
    nodes = head.ray.nodes if head else ()
    address = plan.hosts[name].address
    alive = [node for node in nodes if node.address == address and node.alive]
    return alive[0].gpus if alive else None if plan.backend == "mp" else 0


def text(examination: Examination) -> str:
    """One screen for people."""
    told = to_json(examination)
    lines = [f"{told['cluster']}: {told['model']}, {told['layout']}"
             f"    {time.strftime('%H:%M:%S')}", ""]  # fmt: skip
    for name, host in told["hosts"].items():
        lines += _host_lines(name, host)
    lines += _serving_lines(examination, told) if told["deployed"] else [""]
    cause = told["first_cause"]
    if not told["deployed"] and examination.look.facts:
        bare = "these hosts" if not examination.look.silent else ", ".join(examination.look.facts)
        runs = cause and cause["id"] == RUN
        then = "a run is under way" if runs else f"`{examination.case.deploy}` deploys"
        lines.append(f"nothing is deployed on {bare} yet; {then}")
    if cause:
        lines.append(_cause_line(cause, examination.case.description))
    elif told["deployed"]:
        lines.append(_sound_line(told["warnings"], examination.case.description))
    return "\n".join(lines)


def _sound_line(warnings: int, file: str) -> str:
    if not warnings:
        return "sound"
    count, shows = ("1 warning", "it") if warnings == 1 else (f"{warnings} warnings", "them")
    return f"sound, {count}; `vllm-cluster doctor {file}` shows {shows}"


def _cause_line(cause: dict[str, Any], file: str) -> str:
    found = _cut(cause["found"], _SIDE)
    # Who runs what is a sentence of its own.
    if cause["id"] != RUN:
        found = f"expected {_cut(cause['expected'], _SIDE)}, found {found}"
    told = f"{cause['plane']} plane, {cause['host']}: {found} ({cause['id']})"
    return f"{told}; {_deed(cause['fix'], f'`vllm-cluster doctor {file}`')}"


def _deed(fix: list[dict[str, str]], doctor: str) -> str:
    if any(step["on"] != BY_HAND for step in fix):
        return f"{doctor} has the fix"
    return "wait" if fix and fix[0]["command"].startswith("Wait") else f"{doctor} says more"


def _cut(words: str, length: int) -> str:
    """On one line, and cut at a word where it is longer; the whole is in the JSON."""
    return cut(" ".join(words.split()), length)


def _serving_lines(examination: Examination, told: dict[str, Any]) -> list[str]:
    lines = ["", *_rank_lines(examination)]
    generation = told["generation"]
    said = [generation["text"], _cut(generation["setback"], _LINE)]
    if any(said):
        lines += [*filter(None, said), ""]
    for api in told["apis"]:
        lines += _api_lines(api)
    return [*lines, ""]


def _rank_lines(examination: Examination) -> list[str]:
    """Nothing while no vLLM runs: no rank runs anywhere."""
    placed = ranks(examination)
    if not any(each.found for each in placed) and not _serves(examination):
        return []
    lines = ["rank  pp  tp  planned       runs on"]
    for each in placed:
        note = "" if each.found in {"", each.planned} else "   <- not where the plan has it"
        lines.append(f"{each.rank:>4}  {each.pp_rank:>2}  {each.tp_rank:>2}  "
                     f"{each.planned:<12}  {each.found or '-'}{note}")  # fmt: skip
    return [*lines, ""]


def _host_lines(name: str, host: dict[str, Any]) -> list[str]:
    if not host["seen"]:
        return [f"{name:<12} not seen: {host['words']}"]
    gpus = host["ray_gpus"]
    ray = f"Ray GPUs {gpus if gpus is not None else '-'}/{host['gpus_planned']}"
    free = f"{host['memory_free_bytes'] / 2**30:.0f}/{host['memory_bytes'] / 2**30:.0f} GiB free"
    lines = [f"{name:<12} {host['role']:<7} {host['address']:<15} up {_span(host['uptime_s'])}  "
             f"{ray}  weights {host['weights']}  {free}"]  # fmt: skip
    if not host["deployed"]:
        return [*lines, "    nothing is deployed here"]
    for unit, state in host["units"].items():
        lines += _unit_lines(unit, state)
    for gpu in host["gpus"]:
        used, total = gpu["used_bytes"] / 2**30, gpu["memory_bytes"] / 2**30
        lines.append(f"    GPU {gpu['index']} {gpu['name']:<26} {gpu['utilization'] or 0:>3} %  "
                     f"{used:5.1f}/{total:.1f} GiB  {gpu['temperature_c'] or '-'} C")  # fmt: skip
    return lines


def _unit_lines(name: str, unit: dict[str, Any]) -> list[str]:
    since = "" if unit["since_s"] is None else f"for {_span(unit['since_s'])}"
    count = unit["restarts"]
    restarts = f"  {count} restart{'s' * (count != 1)} since it last held" if count else ""
    lines = [f"    {name:<32} {unit['state']:<24} {since}{restarts}".rstrip()]
    if unit["last_end"]:
        ago = unit["ended_s_ago"]
        when = "" if ago is None else f" {_span(ago)} ago"
        lines.append(f"        ended{when}: {_cut(unit['last_end'], _WORDS)}")
    if unit["note"] and unit["note"] not in unit["last_end"]:
        lines.append(f"        {_cut(unit['note'], _LINE)}")
    return lines


def _api_lines(api: dict[str, Any]) -> list[str]:
    state = "answers" if api["answers"] else "does not answer"
    cache = api["kv_cache_used"]
    return [
        f"API {api['address']} {state}",
        f"requests running {_number(api['running'])}, waiting {_number(api['waiting'])}; "
        f"KV cache used {'-' if cache is None else f'{100 * cache:.1f} %'}; "
        f"tokens generated {_number(api['generated_tokens'])}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _span(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{s:02}s"


def dumps(examination: Examination) -> str:
    """`to_json` as text."""
    return json.dumps(to_json(examination), indent=2)
