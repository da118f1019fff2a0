"""One archive with all that a person who helps from afar needs, and no secret."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from vllm_cluster.control.context import Context
from vllm_cluster.doctor import logs, report, state
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.network_report import state_file
from vllm_cluster.doctor.redact import redacted, redacted_json

# A day of a cluster that fails every minute, and no more than a mail can carry.
LOG_LINES = 3000


def files(known: Context, found: Examination) -> Iterator[tuple[str, str]]:
    """Name and text of everything in the archive, before anything is taken out."""
    chosen = list(found.findings)
    yield "doctor.txt", report.text(found, chosen, everything=True)
    yield "doctor.json", report.dumps(found, chosen)
    yield "status.txt", state.text(found)
    yield "status.json", state.dumps(found)
    yield "logs.txt", logs.text(found)
    yield "plan.json", json.dumps(asdict(known.plan), indent=1)
    yield "description.yaml", known.cluster.file.read_text(encoding="utf-8")
    measured = state_file(known.plan.cluster)
    if measured.is_file():
        yield "network.json", measured.read_text(encoding="utf-8", errors="replace")
    for name, text in found.look.raw.items():
        if text:
            yield f"hosts/{name}.txt", text
    for name, silence in found.look.silent.items():
        yield f"hosts/{name}.silent.txt", silence.words


def write(known: Context, found: Examination, path: Path) -> list[str]:
    """Write the archive to `path`, readable by its owner alone; the names in it."""
    # Digests of secrets are salted, but the salt is at hand: they go too.
    secrets = [*known.secrets.values(), found.look.salt]
    secrets += [d for facts in found.look.facts.values() for d in facts.secrets.values()]
    folder = f"{known.plan.cluster}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = []
    path.touch(mode=0o600)
    path.chmod(0o600)  # one that was there keeps its mode
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files(known, found):
            content = _without(name, text, secrets).encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
            tar.addfile(member, io.BytesIO(content))
            names.append(name)
    return names


def _without(name: str, text: str, secrets: list[str]) -> str:
    if name.endswith(".json"):
        # What was measured is kept on this machine, and may be damaged.
        with contextlib.suppress(ValueError):
            return redacted_json(text, secrets)
    return redacted(text, secrets)
