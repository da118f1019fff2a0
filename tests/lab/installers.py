"""The schema of Ubuntu's installer, out of its own repository, fetched once and known by its hash.

`autoinstall-schema.json` of github.com/canonical/subiquity (GPL-3.0-only). It is downloaded and not
kept here: two revisions, that of Ubuntu 22.04's first day and one of 2026.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx

from tests.lab.harness import ROOT

REVISIONS = {
    "caff5f7dd760a0cf0f1647d26024251a94a43a4c": (
        "a404d79314bdb579fd5230892ef6f437b07826f8e97abb79cbd0a9d24f7eedd8"
    ),
    "48bade6d7bbcc7d72a72e74a92c220f76d9017f2": (
        "beb72fefb590af5dfaaa615f6836c56fd74451f31b21dca631cb8c414f45a2ae"
    ),
}
_URL = "https://raw.githubusercontent.com/canonical/subiquity/{}/autoinstall-schema.json"


def autoinstall_schema(revision: str) -> Any:
    """The schema, out of the cache or downloaded now. Fails where it is not what it was."""
    file: Path = ROOT / ".cache" / "installers" / f"autoinstall-{revision[:12]}.json"
    if not file.exists():
        answer = httpx.get(_URL.format(revision), timeout=60)
        answer.raise_for_status()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(answer.content)
    content = file.read_bytes()
    assert hashlib.sha256(content).hexdigest() == REVISIONS[revision], file
    return json.loads(content)
