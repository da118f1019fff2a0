"""Flags that docker.service gives to dockerd, as the keys of daemon.json that they stand for.

dockerd does not start when a key is given both ways: `the following directives are specified
both as a flag and in the configuration file` (moby, daemon/config/config.go,
findConfigurationConflicts).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Flags whose key has another name (moby, cmd/dockerd/config.go). All others have the flag's.
_KEYS = {
    "H": "hosts",
    "host": "hosts",
    "D": "debug",
    "l": "log-level",
    "G": "group",
    "b": "bridge",
    "s": "storage-driver",
    "p": "pidfile",
    "g": "data-root",
    "graph": "data-root",
    "label": "labels",
    "log-opt": "log-opts",
    "dns-opt": "dns-opts",
    "storage-opt": "storage-opts",
    "exec-opt": "exec-opts",
    "insecure-registry": "insecure-registries",
    "registry-mirror": "registry-mirrors",
    "add-runtime": "runtimes",
    "default-ulimit": "default-ulimits",
    "default-address-pool": "default-address-pools",
    "authorization-plugin": "authorization-plugins",
    "node-generic-resource": "node-generic-resources",
}
# Given without a value. What follows one of them is a flag of its own.
_SWITCHES = re.compile(r"^(D|debug|tls|tlsverify|validate|.*-(forward|masq|tables|proxy))$")
_VARIABLE = re.compile(r"^\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?$")


@dataclass(frozen=True)
class Flag:
    """A flag of dockerd: the key it stands for, its value, and where it is written."""

    key: str
    value: str
    text: str
    source: str


def flags(command: str, environment: Mapping[str, tuple[str, str]], unit: str) -> tuple[Flag, ...]:
    """The flags in `command`, the argument list of docker.service as systemd shows it.

    `environment` maps a variable to its value and the file that sets it; `$NAME` as a word of
    its own is split into words there, as systemd.service(5) has it.
    """
    words: list[tuple[str, str]] = []
    for word in command.split()[1:]:
        variable = _VARIABLE.match(word)
        if variable is None:
            words.append((word, unit))
        elif variable[1] in environment:
            value, source = environment[variable[1]]
            words += [(inner, source) for inner in value.split()]
    return tuple(_flags(words))


def _flags(words: list[tuple[str, str]]) -> Iterable[Flag]:
    at = 0
    while at < len(words):
        word, source = words[at]
        at += 1
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        text = word
        follows = at < len(words) and not words[at][0].startswith("-")
        if not equals and follows and not _SWITCHES.match(name):
            value = words[at][0]
            text = f"{word} {value}"
            at += 1
        yield Flag(_KEYS.get(name, name), value or "true", text, source)


def environment(lines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """(file, line) pairs as variable -> (value, file); the last one of a name counts."""
    found: dict[str, tuple[str, str]] = {}
    for file, line in lines:
        name, equals, value = line.strip().partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            continue
        try:
            found[name] = (" ".join(shlex.split(value, comments=True)), file)
        except ValueError:
            found[name] = (value, file)
    return found


def conflicts(given: Iterable[Flag], keys: Iterable[str]) -> list[Flag]:
    """The flags whose key is among `keys` of daemon.json."""
    wanted = set(keys)
    return [flag for flag in given if flag.key in wanted]
