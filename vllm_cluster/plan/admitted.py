"""Whom a host lets in at present, read back from our own rules in the words of each tool.

While roles move, what serves needs those who were let in for it: they stay until it has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vllm_cluster.plan import ufw
from vllm_cluster.plan.model import Allow
from vllm_cluster.plan.ports import API, CLUSTER, MONITORING

# What follows from roles. The rest of the description holds from the moment it is applied.
_OF_ROLES = (CLUSTER, API, MONITORING)
_NFT = re.compile(r'ip saddr \{ ([^}]+) \}(?: tcp dport \{ ([^}]+) \})? accept comment "([^"]*)"')
_COMMENT = re.compile(r"<!-- (.*) -->")
_POLICY = re.compile(
    r'<rule[^>]*>(?:<source address="([^"]*)"/>)?(?:<port port="(\d+)" protocol="tcp"/>)?<accept/>'
)
_EVERYBODY = "0.0.0.0/0"


def of_nft(lines: Iterable[str]) -> tuple[Allow, ...]:
    """The rules of our table's file."""
    found = [each for each in map(_NFT.fullmatch, map(str.strip, lines)) if each is not None]
    return tuple(
        Allow(
            each[3], tuple(each[1].split(", ")), tuple(map(int, re.findall(r"\d+", each[2] or "")))
        )
        for each in found
    )


def of_ufw(lines: Iterable[str]) -> tuple[Allow, ...]:
    """Our rules among lines of `ufw show added`."""
    found = (each for each in map(ufw.parse, lines) if each is not None)
    return tuple(
        Allow(
            comment.removeprefix(ufw.MARK),
            (_EVERYBODY if rule.source == "any" else rule.source,),
            rule.ports,
        )
        for rule, comment in found
        if comment.startswith(ufw.MARK)
    )


def of_firewalld(lines: Iterable[str]) -> tuple[Allow, ...]:
    """The rules of our policy's file, each beneath its comment."""
    rules, comment = [], ""
    for line in lines:
        if said := _COMMENT.search(line):
            comment = said[1]
        elif rule := _POLICY.search(line):
            ports = (int(rule[2]),) if rule[2] else ()
            rules.append(Allow(comment, (rule[1] or _EVERYBODY,), ports))
    return tuple(rules)


def widened(planned: tuple[Allow, ...], now: Iterable[Allow]) -> tuple[Allow, ...]:
    """`planned`, and whom `now` lets in beyond that on behalf of a role."""
    former: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for rule in now:
        for source in rule.sources if rule.comment in _OF_ROLES else ():
            if not any(_covers(each, source, rule.ports) for each in planned):
                former.setdefault((rule.comment, rule.ports), []).append(source)
    kept = (Allow(comment, tuple(who), ports) for (comment, ports), who in former.items())
    return (*planned, *kept)


def _covers(rule: Allow, source: str, ports: tuple[int, ...]) -> bool:
    every = not rule.ports or (bool(ports) and {*ports} <= {*rule.ports})
    return every and source in rule.sources
