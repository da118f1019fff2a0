"""/etc/hosts as it shall be: our block, and the host's own name off loopback."""

from __future__ import annotations

from collections.abc import Mapping

BEGIN = "# BEGIN vllm-cluster: hosts of the cluster"
END = "# END vllm-cluster"


def hosts_text(old: str, own_names: set[str], addresses: Mapping[str, str]) -> str:
    """`old` with a block of `addresses` (name -> fabric address), everything else kept.

    `own_names` leave the lines of 127.0.0.0/8 and ::1 but for `localhost` names, since gloo and
    torch would listen on loopback there: https://github.com/vllm-project/vllm/issues/7074.
    """
    kept = [line for line in (_line(text, own_names) for text in _outside(old)) if line is not None]
    while kept and not kept[-1].strip():
        kept.pop()
    block = [f"{address}\t{name}" for name, address in addresses.items()]
    return "\n".join([*kept, BEGIN, *block, END]) + "\n"


def _outside(old: str) -> list[str]:
    lines: list[str] = []
    inside = False
    for line in old.splitlines():
        if line == BEGIN:
            inside = True
        elif line == END and inside:
            inside = False
        elif not inside:
            lines.append(line)
    return lines


def _line(line: str, own_names: set[str]) -> str | None:
    """`line` without `own_names` if it is one of loopback; None when no name is left."""
    words, hash_, comment = line.partition("#")
    address, *names = words.split() or [""]
    if not (address.startswith("127.") or address == "::1") or not own_names & set(names):
        return line
    left = [name for name in names if name not in own_names]
    if not left:
        return None
    return f"{address}\t{' '.join(left)}" + (f"  {hash_}{comment}" if hash_ else "")
