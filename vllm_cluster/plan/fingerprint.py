"""What a host consists of, as far as two equal hosts must agree on it, and how two differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

# Key -> value, such as `package rsync` -> `3.2.7-1`, `file /etc/hosts` -> mode, owner and SHA-256.
Fingerprint = Mapping[str, str]


def digest(fingerprint: Fingerprint) -> str:
    """SHA-256 of a fingerprint, lower-case hex: equal for equal hosts."""
    return hashlib.sha256(json.dumps(sorted(fingerprint.items())).encode()).hexdigest()


def differences(first: Fingerprint, second: Fingerprint) -> list[str]:
    """One line a key that is not the same in both, sorted; empty for equal fingerprints."""
    lines = []
    for key in sorted(first.keys() | second.keys()):
        one, other = first.get(key), second.get(key)
        if one != other:
            lines.append(f"{key}: {one or 'nothing'}, then {other or 'nothing'}")
    return lines
