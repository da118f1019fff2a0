"""Reading the value of an argument as the released parser does, or saying why it cannot be."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_cluster.plan.flags.flag import Flag, Keys
from vllm_cluster.plan.flags.problem import Kind

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
CLICK_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
CLICK_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})


class BadValueError(Exception):
    """A value that the argument does not take: its kind, and what would be right."""

    def __init__(self, kind: Kind, wanted: str) -> None:
        super().__init__(wanted)
        self.kind = kind
        self.wanted = wanted


def human_int(text: str) -> int:
    """Read 4096, 4k (thousands) or 4K (1024s), as vllm/utils/argparse_utils.py (0.26 to 0.33).

    Raises ValueError for anything else; 1.5K too, for a binary unit takes no decimals.
    """
    text = text.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text)
    if match is None:
        return int(text)
    number, unit = match.groups()
    return int(float(number) * DECIMAL[unit]) if unit in DECIMAL else int(number) * BINARY[unit]


def read(flag: Flag, text: str) -> Any:
    """The value that the parser would make of `text`. Raises BadValueError."""
    kind = flag.type
    if kind.endswith("?"):
        if text in ("", "None"):
            return _chosen(flag, None)
        kind = kind[:-1]
    return _chosen(flag, _READERS[kind](flag, text))


def _chosen(flag: Flag, value: Any) -> Any:
    if not flag.choices or value in flag.choices:
        return value
    if flag.any_case:
        for choice in flag.choices:
            if str(value).lower() == str(choice).lower():
                return choice
    raise BadValueError(Kind.BAD_CHOICE, "one of " + ", ".join(map(str, flag.choices)))


def _int(_flag: Flag, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValueError(Kind.NOT_A_NUMBER, "a whole number") from None


def _float(_flag: Flag, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValueError(Kind.NOT_A_NUMBER, "a number") from None


def _human_int(_flag: Flag, text: str) -> int:
    try:
        return human_int(text)
    except ValueError:
        wanted = "a whole number, such as 4096, 4k (4000) or 4K (4096)"
        raise BadValueError(Kind.NOT_A_NUMBER, wanted) from None


def _human_int_or_auto(flag: Flag, text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else _human_int(flag, text)


def _bool(_flag: Flag, text: str) -> bool:
    word = text.strip().lower()
    if word not in CLICK_TRUE | CLICK_FALSE:
        raise BadValueError(Kind.BAD_CHOICE, "true or false")
    return word in CLICK_TRUE


def _json(_flag: Flag, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadValueError(Kind.NOT_JSON, f"JSON ({error})") from None


def _json_or_str(flag: Flag, text: str) -> Any:
    return _json(flag, text) if re.match(r"(?s)^\s*{.*}\s*$", text) else text


def _config(flag: Flag, text: str) -> Any:
    value = _json(flag, _numbers_in_full(text))
    if not isinstance(value, dict):
        raise BadValueError(Kind.NOT_JSON, "a JSON object, such as '{\"key\": 1}'")
    for path in unknown_keys(value, flag.keys):
        raise BadValueError(Kind.UNKNOWN_KEY, f"no key {path} ({_known_at(flag.keys, path)})")
    return value


def _numbers_in_full(text: str) -> str:
    """Write 80g as 80000000000 outside of quotes, as vLLM does before it reads the JSON."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda found: _in_full(found.group()), parts[index]
        )
    return "".join(parts)


def _in_full(text: str) -> str:
    try:
        return str(human_int(text))
    except ValueError:
        raise BadValueError(
            Kind.NOT_A_NUMBER, f"no decimals before a binary unit: {text}"
        ) from None


def unknown_keys(value: Mapping[str, Any], keys: Keys | None) -> Iterator[str]:
    """Dotted paths in `value` that the configuration does not have."""
    if keys is None:
        return
    for key, below in value.items():
        if key not in keys:
            yield key
        elif isinstance(below, Mapping):
            yield from (f"{key}.{path}" for path in unknown_keys(below, keys[key]))


def _known_at(keys: Keys | None, path: str) -> str:
    *parents, last = path.split(".")
    for part in parents:
        keys = (keys or {}).get(part)
    known = sorted(keys or {})
    close = difflib.get_close_matches(last, known, n=2)
    return f"nearest: {', '.join(close)}" if close else f"known: {', '.join(known)}"


def _lora(flag: Flag, text: str) -> Any:
    if text in ("", "None"):
        return None
    if "=" in text and "," not in text:
        return text
    value = _json(flag, text)
    if not isinstance(value, dict) or not {"name", "path"} <= value.keys():
        raise BadValueError(Kind.BAD_VALUE, 'name=path or {"name": …, "path": …}')
    return value


_READERS: dict[str, Any] = {
    "str": lambda _flag, text: text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "human_int": _human_int,
    "human_int_or_auto": _human_int_or_auto,
    "json": _json,
    "json_or_str": _json_or_str,
    "config": _config,
    "folded": lambda _flag, text: text.lower().replace("-", "_"),
    "comma_list": lambda _flag, text: [part.strip() for part in text.split(",")],
    "lora": _lora,
}
