"""YAML text to plain data, with the line of every key and value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vllm_cluster.spec.problems import DescriptionError, Problem

Path_ = tuple[str | int, ...]


@dataclass
class Source:
    """What a YAML file says. `lines` maps the path of a value to the line of its key."""

    file: Path
    data: dict[str, Any]
    lines: dict[Path_, int] = field(default_factory=dict)

    def line(self, path: Path_) -> int:
        """The line of the value at `path`, or of its nearest parent that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


def dotted(path: Path_) -> str:
    """`("hosts", "node-a", "address")` as `hosts.node-a.address`; list items as `[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read(file: Path) -> Source:
    """Read `file`. Raises DescriptionError when it is missing, not YAML, or not a mapping."""
    if file.suffix == ".py" and file.is_file():
        raise _whole(file, f"an inventory; give the description, {_beside(file)}", "")
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _whole(file, "no such file", "") from None
    except IsADirectoryError:
        raise _whole(file, "a directory", "a YAML file") from None
    except OSError as error:
        found = f"a file that cannot be read ({error.strerror or error})"
        raise _whole(file, found, "a readable YAML file") from None
    except UnicodeDecodeError:
        raise _whole(file, "bytes that are not UTF-8", "a YAML file in UTF-8") from None
    return parse(file, text)


def _beside(file: Path) -> str:
    description = file.with_suffix(".yaml")
    return description.name if description.is_file() else "a YAML file"


def parse(file: Path, text: str) -> Source:
    """Parse `text` as the content of `file`. Raises DescriptionError, see `read`."""
    try:
        node = yaml.compose(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        raise DescriptionError(file, [_syntax(text, error)]) from None
    except yaml.YAMLError as error:
        raise _whole(file, " ".join(str(error).split()), "YAML text") from None
    if node is None:
        raise _whole(file, "an empty file", "a description; start from inventories/prod.yaml")
    if not isinstance(node, yaml.MappingNode):
        raise _whole(
            file, f"a {_kind(node)} at the top", "a mapping with the keys of a description"
        )
    reader = _Reader()
    data = reader.value(node, ())
    if reader.problems:
        raise DescriptionError(file, reader.problems)
    return Source(file, data, reader.lines)


def _loader() -> Any:
    # The C loader reads a description of 64 hosts ten times faster; both know the same YAML.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _kind(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def _whole(file: Path, found: str, accepted: str) -> DescriptionError:
    return DescriptionError(file, [Problem(0, "", found, accepted)])


def _syntax(text: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 0
    lines = text.splitlines()
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "\t" in (error.problem or ""):
        return Problem(number, "", "a tab in the indentation", "spaces; YAML forbids tabs there")
    found = error.problem or "text that is not YAML"
    return Problem(number, "", f"{found}: {line.strip()[:60]!r}", "YAML")


_SURPRISING = re.compile(r"^[+-]?(0[0-9_]+|[0-9_]+(:[0-9]+)+)$")


class _Reader:
    """Walks composed nodes, since `yaml.load` forgets lines and swallows repeated keys."""

    def __init__(self) -> None:
        self.lines: dict[Path_, int] = {}
        self.problems: list[Problem] = []
        self._scalars = yaml.SafeLoader("")
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path_) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._open:
            # The composed node stands where the anchor is; the alias stands at its key.
            found = "an alias of the value that holds it"
            line = self.lines[path]
            self.problems.append(Problem(line, dotted(path), found, "plain values"))
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            assert isinstance(node, yaml.SequenceNode)  # noqa: S101  YAML has no fourth kind
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self._problem(key_node, path, "a key that is not text", "a name as key")
                continue
            here = (*path, key)
            if key_node.tag == "tag:yaml.org,2002:merge":
                found_words = "a merge key, which would hide where a value comes from"
                self._problem(key_node, here, found_words, "every key written out")
                continue
            line = key_node.start_mark.line + 1
            if key in found:
                first = self.lines[here]
                self._problem(key_node, here, f"the key again (first on line {first})", "one of it")
                continue
            self.lines[here] = line
            found[key] = self.value(value_node, here)
        return found

    def _scalar(self, node: yaml.ScalarNode, path: Path_) -> Any:
        if node.tag.endswith(":int") and _SURPRISING.match(node.value):
            # YAML 1.1 reads 022 as eighteen and 1:30 as ninety.
            self._problem(
                node, path, f"the number {node.value}", "a decimal number without a 0 first"
            )
            return None
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError):
            self._problem(node, path, f"{node.value!r} with the tag {node.tag}", "a plain value")
            return None

    def _problem(self, node: yaml.Node, path: Path_, found: str, accepted: str) -> None:
        line = node.start_mark.line + 1
        self.problems.append(Problem(line, dotted(path), found, accepted))
