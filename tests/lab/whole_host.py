"""A whole host, read without a line of the code under test, and what differs between two looks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_cluster.lab.host import Host

_SCRIPT = r"""
export LC_ALL=C
echo '== files'
find /etc /usr/local /var/lib /opt -xdev -printf '%y\t%p\t%m %u:%g\t%l\n' | sort |
while IFS="$(printf '\t')" read -r kind path mode link; do
  sum=; [ "$kind" != f ] || sum=$(sha256sum "$path" 2>/dev/null | cut -c1-16)
  echo "$path $kind $mode $link $sum"
done
echo '== packages'; dpkg -l | sed -n '6,$p' | awk '{print $2, $1, $3}'
echo '== unit files'; systemctl list-unit-files --no-legend --no-pager | awk '{print $1, $2}'
echo '== loaded units'; systemctl list-units --all --no-legend --no-pager --plain \
  --type=service,timer,mount,socket | awk '{print $1, $3}'
# By their text: Docker writes its chains in another order at every start.
echo '== rules'
nft list ruleset 2>/dev/null | sed 's/counter packets [0-9]* bytes [0-9]*/counter/' |
  sed 's/^[[:space:]]*//; s/ /~/g' | sort | uniq -c | awk 'NF == 2 { print $2, $1 }'
echo '== settings'; sysctl -a 2>/dev/null | sed 's/ = /=/; s/[[:space:]]\+/ /g; s/=/ /'
echo '== listening'; ss -Hltn | awk '{print $4}'
echo '== containers'; docker ps -a --format '{{.Names}}' 2>/dev/null
echo '== links'; ip -o link | awk -F': ' '{print $2}'
echo '== mounts'; findmnt -nro TARGET,FSTYPE
echo '== hold'; apt-mark showhold
echo '== end'
"""


@dataclass(frozen=True)
class Allowed:
    """A difference that counts as none: lines of a section that match, and why."""

    section: str
    pattern: str
    why: str


def look(host: Host) -> dict[str, dict[str, str]]:
    """Section -> name -> the rest of its line."""
    done = host.ssh("bash -s", stdin=_SCRIPT, timeout_s=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            section = found.setdefault(line[3:], {})
        elif line:
            name, _, rest = line.partition(" ")
            section[name] = rest
    assert "end" in found, "the host's answer is not whole"
    assert len(found["files"]) > 500
    return found


def differences(
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
    allowed: tuple[Allowed, ...],
) -> list[str]:
    """One line each for what differs and is not allowed to."""
    lines = []
    for section in before:
        one, other = before[section], after[section]
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) == other.get(name):
                continue
            line = (
                f"{section}: {name}: {one.get(name, 'nothing')}, then {other.get(name, 'nothing')}"
            )
            if not any(a.section == section and re.search(a.pattern, name) for a in allowed):
                lines.append(line)
    return lines
