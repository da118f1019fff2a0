"""/etc/hosts as it shall be: our block, and the host's own name off loopback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BEGIN = "# BEGIN vllm-cluster: hosts of the cluster"
END = "# END vllm-cluster"


def hosts_text(
    old: str,
    own_names: set[str],
    addresses: Mapping[str, str],
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """`old` with a block of `addresses` (name -> fabric address), everything else kept.

    `own_names` leave the lines of 127.0.0.0/8 and ::1 but for `localhost` names, since gloo and
    torch would listen on loopback there: https://github.com/vllm-project/vllm/issues/7074.
    `aliases` (name -> further names of that host) come first on its line, since `hostname -f`
    answers with the first.
    """
    own = {name for name in own_names if _is_name(name)}
    kept = [line for line in (_line(text, own) for text in _outside(old)) if line is not None]
    while kept and not kept[-1].strip():
        kept.pop()
    further = aliases or {}
    block = [
        f"{address}\t{' '.join(dict.fromkeys([*further.get(name, ()), name]))}"
        for name, address in addresses.items()
    ]
    return "\n".join([*kept, BEGIN, *block, END]) + "\n"


def contradictions(old: str, addresses: Mapping[str, str]) -> list[str]:
    """Lines outside our block and off loopback that give one of the names another address.

    They are the user's. The resolver takes the first that fits, or all of them, so the block
    alone would not decide.
    """
    found = []
    for number, line in _numbered_outside(old):
        address, *names = line.partition("#")[0].split() or [""]
        wrong = [name for name in names if addresses.get(name, address) != address]
        if wrong and not _is_loopback(address) and ":" not in address:
            found.append(f"line {number} says that {', '.join(wrong)} is {address}")
    return found


def own_aliases(own: str, names: Sequence[str]) -> list[str]:
    """What a host calls itself beside `own`, its qualified names first."""
    others = [name for name in dict.fromkeys(names) if name != own and _is_name(name)]
    return sorted(others, key=lambda name: "." not in name)


def _is_name(name: str) -> bool:
    return bool(name) and not name.startswith("localhost") and not name[0].isspace()


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _outside(old: str) -> list[str]:
    return [line for _, line in _numbered_outside(old)]


def _numbered_outside(old: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    inside = False
    for number, line in enumerate(old.splitlines(), 1):
        if line == BEGIN:
            inside = True
        elif line == END and inside:
            inside = False
        elif not inside:
            lines.append((number, line))
    return lines


def _line(line: str, own_names: set[str]) -> str | None:
    """`line` without `own_names` if it is one of loopback; None when no name is left."""
    words, hash_, comment = line.partition("#")
    address, *names = words.split() or [""]
    if not _is_loopback(address) or not own_names & set(names):
        return line
    left = [name for name in names if name not in own_names]
    if not left:
        return None
    return f"{address}\t{' '.join(left)}" + (f"  {hash_}{comment}" if hash_ else "")
