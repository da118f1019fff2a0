"""Secrets out of text that leaves the operator's hands."""

from __future__ import annotations

import re
from collections.abc import Iterable

GONE = "[removed]"
# Shorter values would take ordinary words with them.
_SHORTEST = 6
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
                re.DOTALL), GONE),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), GONE),
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {GONE}"),
    (re.compile(r"(?i)(://[^/\s:@]+:)[^/\s@]+@"), rf"\1{GONE}@"),
    # NAME=value and name: value, where the name says what it is. A path is where one is kept.
    (re.compile(r"(?i)((?:api[-_]?key|auth[-_]?token|token|passw(?:or)?d|secret)[\"']?\s*[=:]\s*[\"']?)"
                r"(?!/)[^\s\"',;]{6,}"), rf"\1{GONE}"),
)  # fmt: skip


def redacted(text: str, known: Iterable[str]) -> str:
    """`text` without the values of `known`, and without whatever looks like a secret."""
    for value in sorted(set(known), key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, GONE)
    for pattern, with_ in _PATTERNS:
        text = pattern.sub(with_, text)
    return text
