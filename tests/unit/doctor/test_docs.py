"""docs/doctor.md against the checks: every finding is there by its symptom, and no other."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from vllm_cluster.doctor.causes import CAUSES
from vllm_cluster.doctor.under_way import OF_A_RUN, OF_WEIGHTS

ROOT = Path(__file__).parents[3]
DOCTOR = ROOT / "vllm_cluster" / "doctor"
PLANES = "host|network|docker|gpu|ray|collective|memory|model|vllm|security"
_LITERAL = re.compile(rf'"((?:{PLANES})\.[a-z-]+)"')
_OF_A_PLANE = re.compile(r'f"\{plane\}\.([a-z-]+)"')


def _texts() -> str:
    files = [*(DOCTOR / "checks").glob("*.py"), DOCTOR / "exposure.py"]
    return "".join(path.read_text() for path in files)


def certain() -> set[str]:
    """Identities that stand in the code as they are."""
    names = set(_LITERAL.findall(_texts()))
    return {name for name in names if not name.endswith((".service", ".socket"))}


def given() -> set[str]:
    """With those of a plane that only the host decides: a unit's, or that of a variable."""
    planes = ("ray", "vllm", "collective", "security")
    return certain() | {f"{plane}.{name}" for name in _OF_A_PLANE.findall(_texts())
                        for plane in planes}  # fmt: skip


def told() -> set[str]:
    """Identities and patterns in the table of symptoms."""
    text = (ROOT / "docs" / "doctor.md").read_text()
    table = text[text.index("## By symptom") : text.index("## What it cannot see")]
    return set(re.findall(rf"`((?:{PLANES}|\*)\.[a-z-]+)`", table))


def test_every_finding_is_in_the_docs_by_its_symptom() -> None:
    assert sorted(n for n in certain() if not any(fnmatchcase(n, p) for p in told())) == []
    of_planes = set(_OF_A_PLANE.findall(_texts()))
    assert of_planes <= {pattern.split(".")[1] for pattern in told()}


def test_the_docs_promise_no_finding_that_there_is_not() -> None:
    assert sorted(p for p in told() if not any(fnmatchcase(n, p) for n in given())) == []


def test_causes_name_findings_that_there_are() -> None:
    named = {name for effects in CAUSES.values() for name in effects} | set(CAUSES)
    named |= {*OF_A_RUN, *OF_WEIGHTS}
    assert sorted(p for p in named if not any(fnmatchcase(n, p) for n in given())) == []
