"""Secrets out of text that leaves the operator's hands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

GONE = "[removed]"
# A name that says what the value is. People choose passwords: those are of any length and form.
_PASSWORD = r"(?:passw(?:or)?d|passphrase|(?<![A-Za-z])pass)"  # noqa: S105  a pattern
_TOKEN = (
    r"(?:api[-_]?key|access[-_]?key|auth[-_]?token|token|"  # noqa: S105  a pattern
    r"secret(?:[-_]?(?:access[-_]?)?key)?|credential)"
)
# Between quotes; or between escaped ones, as in JSON that a text in JSON holds.
_QUOTED = (
    r"(?:(?P<quote>[\"'])(?:\\.|(?!(?P=quote))[^\n\\])*(?P=quote)"
    r"|\\(?P<escaped>[\"'])(?:\\\\(?:\\\\|\\[\"']|[^\n\\])|\\(?![\"'\\])|(?!(?P=escaped))[^\n\\])*"
    r"\\(?P=escaped))"
)
# A quote in the middle of a word is the word's own.
_BARE = r"(?:\\[^\"'\s]|[^\s\"'\\]|(?<=\w)\\*[\"'](?=\w))"
_LIST = (
    r"\[(?:[^\[\]\"'\n\\]|\\(?!\\*[\"'])|\n[ \t]*(?=\\*[\"']|\])"
    rf"|{_QUOTED}"
    r"|\\*[\"'][^\n\]]*)*\]?"  # cut off before its quote
)
# `password: null`, "(using password: YES)": no secret, and what is said may be the cause.
_ORDINARY = (
    r"(?!(?:null|none|nil|true|false|yes|no|not|unset|empty|required|~)"
    r"(?:[\s\"',;)\]}\\]|$))"
)
# The end of a sentence, of an argument, of a list is none of the value.
_END = r"(?<![,;)\]}])"


def _named(name: str) -> str:
    return rf"(?P<name>{name}(?:\\*[\"'])?\s*[=:][ \t]*)"


def _option(name: str) -> str:
    # Also as two strings of JSON, or two lines of YAML.
    return rf"(?P<name>--[\w-]{{0,40}}{name}(?:\\*[\"'])?,?\s+(?:- )?)(?!\\*[\"']?-)"


_PASSWORD_VALUE = rf"(?:{_QUOTED}|{_ORDINARY}(?:\\*[\"'])?(?!\[){_BARE}+{_END})"
# A path is where one is kept.
_TOKEN_VALUE = rf"(?:\\*[\"'])?(?!/|\[){_ORDINARY}[^\s\"',\[\]\\]{{6,}}"
_LISTS = re.compile(rf"(?i){_named(f'(?:{_PASSWORD}|{_TOKEN})')}(?P<list>{_LIST})")
_ITEM = re.compile(rf"(?i){_QUOTED}|\b{_ORDINARY}[^\s\"',\[\]\\]+")
_VALUES = tuple(
    re.compile(rf"(?i){where(name)}(?P<value>{value})")
    for where in (_named, _option)
    for name, value in ((_PASSWORD, _PASSWORD_VALUE), (_TOKEN, _TOKEN_VALUE))
)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
                re.DOTALL), GONE),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), GONE),
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {GONE}"),
    (re.compile(r"(?i)(://[^/\s:@]+:)[^/\s@]+@"), rf"\1{GONE}@"),
    # user=NAME%PASSWORD, as Samba's programs take it.
    (re.compile(r"(?i)((?:\buser(?:name)?[ \t]*[=:]|--user|-U)[ \t]*[\"']?[^\s%\"',]+%)"
                r"[^\s\"',]{3,}"), rf"\1{GONE}"),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16})"), GONE),
)  # fmt: skip


def redacted(text: str, known: Iterable[str]) -> str:
    """`text` without the values of `known`, and without whatever looks like a secret."""
    forms = {form for value in known if value for form in _forms(value)}
    if forms:
        # The longest first, and all at once: a short one must not cut what was put in its place.
        every = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        text = re.sub(every, GONE, text)
    for pattern, with_ in _PATTERNS:
        text = pattern.sub(with_, text)
    text = _LISTS.sub(_emptied, text)
    for values in _VALUES:
        text = values.sub(_without, text)
    return text


def redacted_json(text: str, known: Iterable[str]) -> str:
    """The same for JSON, which stays JSON."""
    return json.dumps(_value("", json.loads(text), list(known)), indent=1)


def _value(said: str, value: Any, known: list[str]) -> Any:
    """`said`: what a line of text would have before the value, which may say what that is."""
    if isinstance(value, dict):
        return {redacted(key, known): _value(f"{key}=", one, known) for key, one in value.items()}
    if isinstance(value, list):
        # An argument after its option; else a value of a list that has a name.
        before = [f"{one} " if str(one).startswith("--") else f"{said}[" for one in ["", *value]]
        return [_value(words, one, known) for words, one in zip(before, value, strict=False)]
    if not isinstance(value, str):
        return value
    whole = redacted(said + json.dumps(value), ()) == f'{said}"{GONE}"'
    return GONE if whole else redacted(value, known)


def _forms(value: str) -> Iterator[str]:
    """As it is, in JSON, in a text that JSON holds, in a list that Python prints, in a URL."""
    once = json.dumps(value)[1:-1]
    yield from (value, once, json.dumps(once)[1:-1], repr(value)[1:-1], quote(value, safe=""))


def _emptied(found: re.Match[str]) -> str:
    whole = found["list"]
    if whole != GONE:
        whole = _ITEM.sub(lambda item: _gone(item[0]), whole)
    return found["name"] + whole


def _without(found: re.Match[str]) -> str:
    return found["name"] + _gone(found["value"])


def _gone(value: str) -> str:
    """Its quotes stay: what was JSON is JSON."""
    opened = re.match(r"\\*[\"']", value)
    before = opened[0] if opened else ""
    after = before if before and len(value) >= 2 * len(before) and value.endswith(before) else ""
    inside = value[len(before) : len(value) - len(after)]
    return f"{before}{GONE}{after}" if inside else value
