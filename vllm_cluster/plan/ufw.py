"""Rules of ufw, read from `ufw show added` and written as its arguments. Ours carry a comment."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_cluster.plan.model import Allow

MARK = "vllm-cluster: "
# iptables' multiport takes 15 (iptables-extensions(8)).
_PORTS_OF_A_RULE = 15


@dataclass(frozen=True)
class UfwRule:
    """Incoming TCP (or everything, without ports) from one source is let in."""

    source: str
    ports: tuple[int, ...]

    def arguments(self, comment: str) -> str:
        """What stands after `ufw` to add it, quoted for a shell."""
        return f"{self._rule()} comment {shlex.quote(MARK + comment)}"

    def removal(self) -> str:
        """What stands after `ufw` to take it away."""
        return f"delete {self._rule()}"

    def _rule(self) -> str:
        if not self.ports:
            return f"allow from {self.source}"
        ports = ",".join(map(str, self.ports))
        return f"allow from {self.source} to any port {ports} proto tcp"


def parse(line: str) -> tuple[UfwRule, str] | None:
    """A line of `ufw show added` as (rule, comment); None for rules of another kind."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    comment = ""
    if "comment" in words:
        at = words.index("comment")
        comment, words = " ".join(words[at + 1 :]), words[:at]
    if words[:2] != ["ufw", "allow"]:
        return None
    rule = _rule(words[2:])
    return None if rule is None else (rule, comment)


def _rule(words: list[str]) -> UfwRule | None:
    if words[:1] == ["in"]:
        words = words[1:]
    match words:
        case [port] if port.endswith("/tcp"):
            return _with_ports("any", port.removesuffix("/tcp"))
        case ["from", source]:
            return UfwRule(source, ())
        case ["from", source, "to", "any", "port", ports, "proto", "tcp"]:
            return _with_ports(source, ports)
        case _:
            return None


def _with_ports(source: str, ports: str) -> UfwRule | None:
    try:
        return UfwRule(source, tuple(sorted(int(port) for port in ports.split(","))))
    except ValueError:  # a range or the name of a service
        return None


def wanted(allow: Iterable[Allow]) -> dict[UfwRule, str]:
    """Our rules, each with its comment. The first comment of two equal rules stays."""
    rules: dict[UfwRule, str] = {}
    for line in allow:
        ports = sorted(set(line.ports))
        chunks = [
            ports[at : at + _PORTS_OF_A_RULE] for at in range(0, len(ports), _PORTS_OF_A_RULE)
        ]
        for source in line.sources:
            for chunk in chunks or [[]]:
                rules.setdefault(UfwRule(_source(source), tuple(chunk)), line.comment)
    return rules


def _source(source: str) -> str:
    if source == "0.0.0.0/0":
        return "any"
    return source.removesuffix("/32")


def changes(added: Iterable[str], allow: Iterable[Allow]) -> list[str]:
    """Arguments of ufw that bring `added` (lines of `ufw show added`) to `allow`.

    What is missing is added before what is ours and not wanted any more goes. A rule of the
    user's that already says the same stays the user's: adding it again would put our comment on
    it, and a later removal would take it away.
    """
    found = [rule for rule in map(parse, added) if rule is not None]
    want = wanted(allow)
    have = {rule for rule, _ in found}
    new = [rule.arguments(comment) for rule, comment in want.items() if rule not in have]
    old = [
        rule.removal() for rule, comment in found if comment.startswith(MARK) and rule not in want
    ]
    return new + old
