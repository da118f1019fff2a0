"""Rules of ufw, read from `ufw show added` and written as its arguments. Ours carry a comment."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm_cluster.plan.model import Allow

MARK = "vllm-cluster: "
# iptables' multiport takes 15 (iptables-extensions(8)).
_PORTS_OF_A_RULE = 15
_LETS_IN = ("allow", "limit")


@dataclass(frozen=True)
class UfwRule:
    """What happens to incoming TCP (or everything, without ports) from one source.

    For ufw two rules that differ in their action alone are one: the later takes the other's place.
    """

    source: str
    ports: tuple[int, ...]
    action: str = field(default="allow", compare=False)

    def arguments(self, comment: str) -> str:
        """What stands after `ufw` to add it, quoted for a shell."""
        return f"{self._rule()} comment {shlex.quote(MARK + comment)}"

    def removal(self) -> str:
        """What stands after `ufw` to take it away."""
        return f"delete {self._rule()}"

    def _rule(self) -> str:
        if not self.ports:
            return f"{self.action} from {self.source}"
        ports = ",".join(map(str, self.ports))
        return f"{self.action} from {self.source} to any port {ports} proto tcp"


def parse(line: str) -> tuple[UfwRule, str] | None:
    """A line of `ufw show added` that lets in, as (rule, comment); None for other rules."""
    found = _parsed(line)
    return found if found is not None and found[0].action.startswith(_LETS_IN) else None


def _parsed(line: str) -> tuple[UfwRule, str] | None:
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    comment = ""
    if "comment" in words:
        at = words.index("comment")
        comment, words = " ".join(words[at + 1 :]), words[:at]
    if words[:1] != ["ufw"]:
        return None
    rule = _rule(words[1:])
    return None if rule is None else (rule, comment)


def _rule(words: list[str]) -> UfwRule | None:
    action, words = " ".join(words[:1]), words[1:]
    if words[:1] == ["in"]:
        words = words[1:]
    if words[:1] in (["log"], ["log-all"]):
        action, words = f"{action} {words[0]}", words[1:]
    match words:
        case [port] if port.endswith("/tcp"):
            return _with_ports("any", port.removesuffix("/tcp"), action)
        case ["from", source]:
            return UfwRule(source, (), action)
        case ["from", source, "to", "any", "port", ports, "proto", "tcp"]:
            return _with_ports(source, ports, action)
        case _:
            return None


def _with_ports(source: str, ports: str, action: str) -> UfwRule | None:
    try:
        return UfwRule(source, tuple(sorted(int(port) for port in ports.split(","))), action)
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
        rule.removal()
        for rule, comment in found
        if comment.startswith(MARK) and rule.action == "allow" and rule not in want
    ]
    return new + old


def obstacle(added: Iterable[str], allow: Iterable[Allow]) -> str:
    """Why rules for `allow` may not be added: one of the user's that keeps the same out.

    ufw would put ours in its place without a word. Empty where there is none.
    """
    want = wanted(allow)
    for line in added:
        found = _parsed(line)
        if found and found[0] in want and not found[0].action.startswith(_LETS_IN):
            return (
                f"ufw keeps out what the plan lets in ({want[found[0]]}), and our rule would take "
                f"the place of `{line}`; `ufw {found[0].removal()}` takes that away"
            )
    return ""
