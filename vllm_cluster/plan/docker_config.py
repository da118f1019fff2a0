"""Docker's daemon.json: what we need put into what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Only where the user has chosen nothing: json-file logs grow until the disk is full.
DEFAULTS: dict[str, Any] = {
    "log-driver": "local",
    "log-opts": {"max-size": "50m", "max-file": "3"},
}
# Runtimes that dockerd knows without being told (moby, daemon/runtime_unix.go).
_BUILT_IN_RUNTIMES = {"runc", "io.containerd.runc.v2"}


def parsed(old: str) -> dict[str, Any]:
    """The object in `old`. Raises ValueError where it is not a JSON object."""
    try:
        have = json.loads(old) if old.strip() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(have, dict):
        raise ValueError("not a JSON object")
    return have


def merged(old: str, wanted: dict[str, Any], defaults: dict[str, Any] | None = None) -> str:
    """`old` with `wanted` set and `defaults` where it says nothing; every other key is kept.

    Log options belong to a driver, so ours come only together with ours.
    Raises ValueError where `old` is not a JSON object.
    """
    have = parsed(old)
    fill = DEFAULTS if defaults is None else defaults
    new = _deep({**have, **({} if {"log-driver", "log-opts"} & set(have) else fill)}, wanted)
    if new == have and old.strip():
        return old if old.endswith("\n") else old + "\n"
    return json.dumps(new, indent=2) + "\n"


def _deep(have: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(have)
    for key, value in wanted.items():
        old = new.get(key)
        nested = isinstance(old, dict) and isinstance(value, dict)
        new[key] = _deep(old or {}, value) if nested else value
    return new


def changes(old: str, new: str) -> list[str]:
    """What differs between two files, a line a key; order and spaces are no difference."""
    before, after = dict(_flat(parsed(old))), dict(_flat(parsed(new)))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        was, will = before.get(key), after.get(key)
        if was is None:
            lines.append(f"+ {key}: {will}")
        elif will is None:
            lines.append(f"- {key}: {was}")
        elif was != will:
            lines.append(f"~ {key}: {was} -> {will}")
    return lines


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(inner)


def unknown_default_runtime(text: str) -> str:
    """The default runtime of a daemon.json when nothing defines it, else an empty string.

    dockerd does not start with one that it does not know.
    """
    config = parsed(text)
    name = str(config.get("default-runtime", "runc"))
    return "" if name in _BUILT_IN_RUNTIMES or name in config.get("runtimes", {}) else name
