"""Which rule of `nft -a list ruleset` stops a connection, and what takes it away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network

OUR_TABLE = "inet vllm_cluster"
# Which hosts reach the head's GCS, made by its unit (`door only`).
GCS_TABLE = f"{OUR_TABLE}_gcs"


@dataclass(frozen=True)
class Blocking:
    """A rule, or a chain's policy, that stops packets; `fix` is one nft command."""

    text: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """One line of a chain. `hook`: input where the chain is a base chain of that hook."""

    table: str
    chain: str
    hook: str
    policy: str
    text: str
    handle: str


def rules(ruleset: str) -> Iterator[Rule]:
    """Rules of all tables, in order; a chain itself comes first, as a rule without text."""
    table = chain = hook = policy = ""
    for raw in ruleset.splitlines():
        line = raw.strip()
        if match := re.match(r"table (\S+ \S+) \{", line):
            table = match[1]
        elif match := re.match(r"chain (\S+) \{", line):
            chain, hook, policy = match[1], "", "accept"
        elif line.startswith("type "):
            hooked, declared = re.search(r"hook (\w+)", line), re.search(r"policy (\w+)", line)
            hook = hooked[1] if hooked else ""
            policy = declared[1] if declared else "accept"
            yield Rule(table, chain, hook, policy, "", "")
        elif line == "}":
            chain = ""
        elif chain and line:
            text, _, handle = line.partition(" # handle ")
            yield Rule(table, chain, hook, policy, text, handle)


@dataclass(frozen=True)
class Packet:
    """The first of a TCP connection to one of `ports`; `address` and `card` are those that it comes
    to. Empty: not known, and so not compared."""

    source: str
    ports: list[int]
    address: str = ""
    card: str = ""


def blocking(ruleset: str, packet: Packet, hosts: list[str]) -> Blocking | None:
    """What stops `packet` in this ruleset; None where nothing does.

    Reads base chains of the input hook and the chains they jump to, first match wins, rule by
    rule as far as addresses, ports and cards go. Our own tables are left out: the deploy mends
    those.
    """
    every = [rule for rule in rules(ruleset) if rule.table.split()[0] in {"ip", "inet"}]
    bases = {(r.table, r.chain): r.policy for r in every if r.hook == "input" and not r.text}
    for (table, chain), policy in bases.items():
        if table in {OUR_TABLE, GCS_TABLE}:
            continue
        verdict, rule = _verdict(every, (table, chain), packet)
        if verdict == "stop" and rule is not None:
            return Blocking(_named(rule), _removal(rule))
        if verdict != "accept" and policy == "drop":
            allowed = f"ip saddr {{ {', '.join(hosts)} }} accept"
            fix = f"nft 'insert rule {table} {chain} {allowed}'"
            return Blocking(f"table {table}, chain {chain}: policy drop", fix)
    return None


def accepting(ruleset: str, packet: Packet) -> Blocking | None:
    """The rule that lets `packet` in where its chain drops by default; None where none is found."""
    every = [rule for rule in rules(ruleset) if rule.table.split()[0] in {"ip", "inet"}]
    bases = {(r.table, r.chain) for r in every
             if r.hook == "input" and not r.text and r.policy == "drop"}  # fmt: skip
    for base in sorted(bases):
        verdict, rule = _verdict(every, base, packet)
        if verdict == "accept" and rule is not None:
            return Blocking(_named(rule), _removal(rule))
    return None


def _named(rule: Rule) -> str:
    return f"table {rule.table}, chain {rule.chain}: {rule.text}"


def _removal(rule: Rule) -> str:
    return f"nft delete rule {rule.table} {rule.chain} handle {rule.handle}"


def _verdict(
    every: list[Rule], place: tuple[str, str], packet: Packet, deep: int = 0
) -> tuple[str, Rule | None]:
    """ "stop", "accept" or "return" with the rule that says so; empty at the chain's end."""
    for rule in every:
        if (rule.table, rule.chain) != place or not rule.text:
            continue
        text = re.sub(r'comment "[^"]*"', "", rule.text)
        if not _matches(text, packet):
            continue
        if _STOP.search(text):
            return "stop", rule
        if match := _PASS.search(text):
            return match[1], rule
        jump = re.search(r"\b(jump|goto) (\S+)", text)
        if jump and deep < 8:
            verdict = _verdict(every, (place[0], jump[2]), packet, deep + 1)
            if verdict[0] in {"stop", "accept"} or jump[1] == "goto":
                return verdict
    return "", None


def _matches(text: str, packet: Packet) -> bool:
    """Whether a new TCP connection over the fabric meets the rule, as far as we understand it."""
    text = re.sub(r"\breject with .*", "reject", text)
    if re.search(r'iifname "?lo\b|iif "?lo\b|icmp|udp', text):
        return False
    # `nft -n` prints states as bits: new is 0x8, untracked 0x40.
    states = re.search(r"ct state (!= )?(\{[^}]*\}|\S+)", text)
    if states and bool(states[1]) == bool(_NEW & set(re.split(r"[,\s{}]+", states[2]))):
        return False
    return _comes_that_way(text, packet) and _to_those_ports(text, packet.ports)


def _comes_that_way(text: str, packet: Packet) -> bool:
    """From that address, to that address, over that card."""
    if re.search(r"\b(?:fib daddr|pkttype) (?:type )?(?:broadcast|multicast|anycast)", text):
        return False
    compared = (
        (r"\bip saddr", packet.source, _holds),
        (r"\bip daddr", packet.address, _holds),
        (r"\biif(?:name)?", packet.card, _is_card),
    )
    for field, value, holds in compared:
        match = re.search(rf"{field} (!= )?(\{{[^}}]*\}}|\S+)", text)
        if match and value:
            inside = any(holds(part, value) for part in _parts(match[2]))
            if inside == bool(match[1]):
                return False
    return True


def _to_those_ports(text: str, ports: list[int]) -> bool:
    if match := re.search(r"(?:tcp|th) dport (!= )?(\{[^}]*\}|\S+)", text):
        inside = any(_in_range(part, port) for part in _parts(match[2]) for port in ports)
        return inside != bool(match[1])
    return "sport" not in text and not re.search(r"meta l4proto \{? ?(1|58|17|\"?udp)", text)


def _is_card(pattern: str, card: str) -> bool:
    return fnmatchcase(card, pattern.strip('"'))


# Whole words: a chain may be called ufw-reject-input.
_STOP = re.compile(r"(?<!\S)(?:drop|reject)(?!\S)")
_PASS = re.compile(r"(?<!\S)(accept|return)(?!\S)")
_NEW = {"new", "0x8", "untracked", "0x40"}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.strip("{} ").split(",") if part.strip()]


def _holds(network: str, address: str) -> bool:
    try:
        if "-" in network:
            first, last = (IPv4Address(part) for part in network.split("-"))
            return first <= IPv4Address(address) <= last
        return IPv4Address(address) in IPv4Network(network, strict=False)
    except ValueError:
        return False  # a named set, or IPv6


def _in_range(text: str, port: int) -> bool:
    first, _, last = text.partition("-")
    return first.isdigit() and int(first) <= port <= int(last or first)
