"""Answers of Ray's dashboard and agents and of vLLM."""

from __future__ import annotations

import json
import re
from typing import Any

from vllm_cluster.facts.doctor.model import Answer, Api, Ray, RayFile, RayNode, Recovery
from vllm_cluster.facts.doctor.sections import Section, Sections
from vllm_cluster.plan.last_words import plain

_METRIC = re.compile(r"^(vllm:\w+|process_start_time_seconds)(?:\{[^}]*\})? ([-+.\deE]+|NaN)$")


def answer(section: Section) -> Answer:
    """An HTTP answer as it came over the wire; bash's words where none came."""
    text = section.text
    status = re.match(r"HTTP/1\.[01] (\d{3})", text)
    if status is None:
        words = text.strip().splitlines()[-1:] or [""]
        said = re.sub(r"^\w+: (line \d+: )?(/dev/tcp/)?", "", words[0])
        return Answer(words=said or "no answer", timed_out=section.timed_out)
    _, _, body = text.replace("\r\n", "\n").partition("\n\n")
    return Answer(int(status[1]), body.strip(), timed_out=section.timed_out)


def ray(sections: Sections) -> Ray:
    """Nodes of `/api/v0/nodes` (Ray's state API, 2.54 to 2.60)."""
    found = answer(sections.one("ray-nodes"))
    try:
        rows = json.loads(found.body)["data"]["result"]["result"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return Ray(found)
    return Ray(found, tuple(_node(row) for row in rows))


def _node(row: dict[str, Any]) -> RayNode:
    return RayNode(
        node_id=str(row.get("node_id", "")),
        address=str(row.get("node_ip", "")),
        alive=row.get("state") == "ALIVE",
        gpus=round((row.get("resources_total") or {}).get("GPU", 0)),
        message=str(row.get("state_message") or ""),
        ended_s=(row.get("end_time_ms") or 0) / 1000,
    )


def api(sections: Sections) -> Api:
    """What vLLM answers on its own host."""
    keyless = answer(sections.one("api-keyless"))
    return Api(
        health=answer(sections.one("api-health")),
        completion=answer(sections.one("api-completion")),
        keyless_status=keyless.status,
        metrics=metrics(sections.one("api-metrics").lines),
        later=metrics(sections.one("api-later").lines),
    )


def metrics(lines: tuple[str, ...]) -> dict[str, float]:
    """Prometheus lines to sums over their labels; vLLM has one series for each engine."""
    found: dict[str, float] = {}
    for line in lines:
        match = _METRIC.match(line.strip())
        if match and match[2] != "NaN":
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def recovery(sections: Sections) -> dict[str, Recovery]:
    """Unit, without its suffix, to what it notes of itself."""
    gave_up: dict[str, str] = {}
    watchdog: dict[str, list[str]] = {}
    watched: dict[str, float] = {}
    again: dict[str, list[tuple[float, str]]] = {}
    starts: dict[str, int] = {}
    for unit, rest in sections.pairs("recovery"):
        kind, _, words = rest.partition(" ")
        if kind == "gave-up":
            gave_up[unit] = words
        elif kind == "watchdog":
            watchdog.setdefault(unit, []).append(words)
        elif kind == "watched" and (at := words.partition(" ")[0]).isdigit():
            watched[unit] = float(at)
        elif kind == "starts" and words.isdecimal():
            starts[unit] = int(words)
        elif kind == "history":
            when, _, why = words.partition(" ")
            if when.isdecimal():
                again.setdefault(unit, []).append((float(when), plain(why)))
    return {
        unit: Recovery(
            gave_up.get(unit, ""),
            tuple(watchdog.get(unit, ())),
            watched.get(unit, 0.0),
            tuple(again.get(unit, ())),
            starts.get(unit, 0),
        )
        for unit in {*gave_up, *watchdog, *watched, *again, *starts}
    }


def ray_files(sections: Sections) -> tuple[RayFile, ...]:
    """Ends of Ray's own files; each line came with a blank before it."""
    found = []
    for section in sections.named("ray-file"):
        changed, _, name = section.argument.partition(" ")
        lines = tuple(line[1:] for line in section.lines if line.strip())
        found.append(RayFile(name, float(changed.replace(",", ".")), lines))
    return tuple(found)
