"""Secrets out of text that leaves the operator's hands."""

from __future__ import annotations

import re
from collections.abc import Iterable

GONE = "[removed]"
# Shorter values would take ordinary words with them.
_SHORTEST = 6
_NAMES = (
    r"(?:api[-_]?key|access[-_]?key|auth[-_]?token|token|passw(?:or)?d|passphrase|"
    r"secret(?:[-_]?(?:access[-_]?)?key)?|credential)"
)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
                re.DOTALL), GONE),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), GONE),
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {GONE}"),
    (re.compile(r"(?i)(://[^/\s:@]+:)[^/\s@]+@"), rf"\1{GONE}@"),
    # NAME=value and name: value, where the name says what it is. A path is where one is kept.
    (re.compile(rf"(?i)({_NAMES}[\"']?\s*[=:]\s*\[?[\"']?)(?!/)[^\s\"',;\[\]]{{6,}}"),
     rf"\1{GONE}"),
    # --name value, also as two strings of JSON.
    (re.compile(rf"(?i)(--[\w-]*{_NAMES}[\"']?,?\s+[\"']?)(?![/-])[^\s\"',;\[\]]{{6,}}"),
     rf"\1{GONE}"),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16})"), GONE),
)  # fmt: skip


def redacted(text: str, known: Iterable[str]) -> str:
    """`text` without the values of `known`, and without whatever looks like a secret."""
    for value in sorted(set(known), key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, GONE)
    for pattern, with_ in _PATTERNS:
        text = pattern.sub(with_, text)
    return text
