"""Docker's daemon.json: what we need put into what is there."""

from __future__ import annotations

import json
from typing import Any

# Only where the user has chosen nothing: json-file logs grow until the disk is full.
DEFAULTS: dict[str, Any] = {
    "log-driver": "local",
    "log-opts": {"max-size": "50m", "max-file": "3"},
}


def merged(old: str, wanted: dict[str, Any]) -> str:
    """`old` with `wanted` set and DEFAULTS where it says nothing; every other key is kept.

    Log options belong to a driver, so ours come only together with ours.
    Raises ValueError where `old` is not a JSON object.
    """
    try:
        have = json.loads(old) if old.strip() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(have, dict):
        raise ValueError("not a JSON object")
    defaults = {} if {"log-driver", "log-opts"} & set(have) else DEFAULTS
    new = {**have, **defaults, **wanted}
    if new == have and old.strip():
        return old if old.endswith("\n") else old + "\n"
    return json.dumps(new, indent=2) + "\n"
