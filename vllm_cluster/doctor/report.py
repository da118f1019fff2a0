"""Findings as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.finding import Finding

_MARK = {"failing": "FAIL", "blind": "????", "warning": "warn"}


def select(
    examination: Examination, planes: tuple[str, ...], hosts: tuple[str, ...]
) -> list[tuple[Finding, Finding | None]]:
    """Findings of these planes and hosts; all where none are named."""
    return [
        (finding, cause)
        for finding, cause in examination.findings
        if (not planes or finding.plane in planes) and (not hosts or finding.concerns & set(hosts))
    ]


def text(
    examination: Examination, chosen: list[tuple[Finding, Finding | None]], *, everything: bool
) -> str:
    """One block a cause, what follows from it in a line beneath, and a verdict."""
    return "\n".join(_lines(examination, chosen, everything=everything))


def _lines(
    examination: Examination, chosen: list[tuple[Finding, Finding | None]], *, everything: bool
) -> Iterator[str]:
    shown = {id(finding) for finding, _ in chosen}
    for finding, cause in chosen:
        # What follows from a cause that is not asked for would not be told at all.
        if cause is not None and id(cause) in shown and not everything:
            continue
        yield f"{_MARK[finding.severity]}  {finding.host}  {finding.plane}  {finding.id}"
        yield f"      expected  {finding.expected}"
        yield f"      found     {finding.found}"
        if finding.evidence:
            yield f"      evidence  {finding.evidence}"
        for number, step in enumerate(finding.fix):
            yield f"      {'fix      ' if number == 0 else 'then     '} {step.text()}"
        if cause is not None:
            yield f"      follows from {cause.id} on {cause.host}"
        # Two secrets, cards or ports of one host are two findings of one name.
        follows = dict.fromkeys(f"{f.id} on {f.host}" for f, why in chosen if why is finding)
        if follows and not everything:
            yield f"      explains  {', '.join(follows)}"
        yield ""
    yield verdict(examination, chosen)


def verdict(examination: Examination, chosen: list[tuple[Finding, Finding | None]]) -> str:
    """The last line: of the whole cluster, whatever part of it is shown."""
    plan, look = examination.case.plan, examination.look
    seen = f"{len(look.facts)} of {len(look.facts) + len(look.silent)} hosts looked at"
    took = f"in {look.seconds:.1f} s"
    causes = [f for f, why in examination.findings if why is None and f.severity != "warning"]
    warnings = sum(f.severity == "warning" for f, _ in chosen)
    also = f", {warnings} warning{'s' * (warnings != 1)}" if warnings else ""
    if causes:
        first = causes[0]
        more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
        return f"{plan.cluster}: {first.plane} plane on {first.host}{more}{also}; {seen} {took}."
    if not examination.case.deployed_somewhere:
        return f"{plan.cluster}: nothing is deployed yet, and nothing stands in the way{also}; " \
            f"{seen} {took}.\nDeploy: {examination.case.deploy}"  # fmt: skip
    return f"{plan.cluster}: sound{also}; {seen} {took}."


def to_json(
    examination: Examination, chosen: list[tuple[Finding, Finding | None]]
) -> dict[str, Any]:
    """The same for programs. `findings` are in the order of causes."""
    return {
        "cluster": examination.case.plan.cluster,
        "exit_code": examination.exit_code,
        "seconds": round(examination.look.seconds, 3),
        "hosts": {
            **dict.fromkeys(examination.look.facts, "seen"),
            **{name: f"silent: {s.words}" for name, s in examination.look.silent.items()},
        },
        "deployed": examination.case.deployed_somewhere,
        "findings": [
            finding.to_json()
            | {"caused_by": {"id": cause.id, "host": cause.host} if cause else None}
            for finding, cause in chosen
        ],
    }


def dumps(
    examination: Examination, chosen: list[tuple[Finding, Finding | None]], *, lines: bool = True
) -> str:
    """`to_json` as text, of many lines or of one."""
    return json.dumps(to_json(examination, chosen), indent=2 if lines else None)
