"""From a file to a checked Cluster, or every error at once."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from vllm_cluster.spec.checks import CHECKS, Parts
from vllm_cluster.spec.model import Cluster, Description, Host
from vllm_cluster.spec.problems import DescriptionError, Problem
from vllm_cluster.spec.source import Path_, Source, dotted, parse, read


def load(file: Path) -> Cluster:
    """Read and check the description in `file`. Raises DescriptionError with all problems."""
    return check(read(file))


def loads(text: str, file: Path) -> Cluster:
    """Check the description `text` as if it stood in `file`. Raises DescriptionError."""
    return check(parse(file, text))


def check(source: Source) -> Cluster:
    """Check what `source` says. Raises DescriptionError with all problems."""
    problems: list[Problem] = []
    description: Description | None = None
    try:
        description = Description.model_validate(source.data)
    except ValidationError as error:
        problems += _typed_problems(source, error)
    parts = _parts(source.data) if description is None else _whole_parts(description)
    for rule in CHECKS:
        for path, found, accepted in rule(parts):
            problems.append(Problem(source.line(path), dotted(path), found, accepted))
    if problems or description is None:
        raise DescriptionError(source.file, problems)
    return Cluster(file=source.file.resolve(), description=description, lines=source.lines)


_SECTIONS: tuple[str, ...] = (
    "head", "workers", "network", "parallel", "memory", "ports",
    "serve", "secrets", "image", "ssh", "storage", "driver", "model", "weights",
    "install",
)  # fmt: skip


def _whole_parts(description: Description) -> Parts:
    """The parts of a description whose types are all right."""
    hosts = description.hosts
    sections = {name: getattr(description, name) for name in _SECTIONS}
    return Parts(hosts=hosts, hosts_named=set(hosts), hosts_whole=True, **sections)


def _parts(data: dict[str, Any]) -> Parts:
    """What of `data` is valid by itself."""
    parts = Parts()
    hosts = data.get("hosts")
    if isinstance(hosts, dict):
        parts.hosts_named = set(hosts)
        found = {name: _valid(Host, value) for name, value in hosts.items()}
        parts.hosts = {name: host for name, host in found.items() if host is not None}
        parts.hosts_whole = bool(hosts) and len(parts.hosts) == len(hosts)
    for name in _SECTIONS:
        _take(parts, data, name)
    return parts


def _take(parts: Parts, data: dict[str, Any], name: str) -> None:
    info = Description.model_fields[name]
    if name in data:
        setattr(parts, name, _valid(info.annotation, data[name]))
    elif not info.is_required():
        setattr(parts, name, info.get_default(call_default_factory=True))


def _valid(kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return None


def _typed_problems(source: Source, error: ValidationError) -> list[Problem]:
    problems: dict[Path_, Problem] = {}
    for detail in error.errors(include_url=False):
        path = _data_path(source.data, detail)
        problem = _problem(source, path, detail)
        # A union reports each of its branches; the first says it, with the field's own words.
        problems.setdefault(path, problem)
    # Where `auto` or a mapping is accepted, the mapping's own errors say it; that it is not `auto`
    # either helps nobody.
    above = {path[:length] for path in problems for length in range(len(path))}
    return [problem for path, problem in problems.items() if path not in above]


def _data_path(data: Any, detail: ErrorDetails) -> Path_:
    """The error's place in the file: pydantic adds union branches and `[key]` to it."""
    path: list[str | int] = []
    here = data
    missing = detail["type"] == "missing"
    for step in detail["loc"]:
        if isinstance(here, dict) and step in here:
            path.append(step)
            here = here[step]
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            path.append(step)
            here = here[step]
    if missing:
        path.append(detail["loc"][-1])
    return tuple(path)


def _problem(source: Source, path: Path_, detail: ErrorDetails) -> Problem:
    line = source.line(path)
    kind = detail["type"]
    if kind == "missing":
        return Problem(line, dotted(path), "nothing (the key is missing)", _accepted(path))
    if kind == "extra_forbidden":
        return Problem(line, dotted(path), "an unknown key", _keys(path))
    value = path[-1] if detail["loc"][-1:] == ("[key]",) else _written(source.data, path)
    reason = detail["msg"].removeprefix("Value error, ") if kind == "value_error" else ""
    found = _shown(path, value) + (f" ({reason})" if reason else "")
    return Problem(line, dotted(path), found, _accepted(path) or detail["msg"])


def _written(data: Any, path: Path_) -> Any:
    """The value as it stands in the file: pydantic shows sizes in bytes."""
    for step in path:
        data = data[step]
    return data


def _shown(path: Path_, value: Any) -> str:
    # A secret written into the description by mistake must not travel on into a log.
    if path[:1] == ("secrets",) and value not in ("generate", "none", None):
        return f"a {type(value).__name__} (not shown)"
    if value is None:
        return "nothing (null)"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _accepted(path: Path_) -> str:
    """The nearest field's own words for what it takes."""
    words = ""
    owner, names = None, [Description]
    for step in path:
        owner, info = _field(names, step)
        if info is None:
            continue
        words = info.description or _described(info) or words
    if not words and owner is not None:
        return "a mapping with " + ", ".join(owner.model_fields)
    return words


def _field(names: list[Any], step: str | int) -> tuple[Any, Any]:
    """One step down from the section on top of `names`: the section there, and the field.

    A mapping or a list of sections (`hosts`) takes one step more, the name, which is no field.
    """
    owner = names[-1]
    if owner is None:
        return None, None
    if isinstance(owner, tuple):
        names.append(owner[0])
        return owner[0], None
    info = owner.model_fields.get(step)
    section = _section(info.annotation) if info is not None else None
    mapped = info is not None and _holds_many(info.annotation) and section is not None
    names.append((section,) if mapped else section)
    return section, info


def _holds_many(annotation: Any) -> bool:
    """Whether it is a mapping or a list, or one of those or None."""
    kinds = (annotation, *get_args(annotation))
    return any(get_origin(kind) in {dict, list} for kind in kinds)


def _described(info: Any) -> str:
    return next((m.description for m in info.metadata if getattr(m, "description", None)), "")


def _is_section(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _section(annotation: Any) -> Any:
    """The Section behind `X`, `X | None` and `dict[str, X]`."""
    if _is_section(annotation):
        return annotation
    found = (_section(inner) for inner in get_args(annotation))
    return next((section for section in found if section is not None), None)


def _keys(path: Path_) -> str:
    names: list[Any] = [Description]
    for step in path[:-1]:
        _field(names, step)
    owner = names[-1]
    keys = list(owner.model_fields) if _is_section(owner) else []
    near = difflib.get_close_matches(str(path[-1]), keys, n=1)
    hint = f"{near[0]}? The keys here are " if near else "the keys "
    return hint + ", ".join(keys)
