"""Free space under paths, in one round trip."""

from __future__ import annotations

import shlex

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.space import Need, Room

# Docker's store is where daemon.json says, also before Docker is installed.
_SCRIPT = r"""
t=$(printf '\t')
docker_root() {
  root=$(sed -n 's/.*"data-root"[^"]*"\([^"]*\)".*/\1/p' /etc/docker/daemon.json 2>/dev/null)
  echo "${root:-/var/lib/docker}"
}
room() {
  path=$2; [ "$path" != docker ] || path=$(docker_root)
  near=$path; while [ ! -e "$near" ]; do near=$(dirname "$near"); done
  row=$(df -B1 --output=size,avail,target "$near" | tail -n1 | sed 's/^ *//; s/  */ /g')
  there=no
  case $3 in
    /*) [ ! -e "$3" ] || there=yes ;;
    ?*) ! docker image inspect "$3" >/dev/null 2>&1 || there=yes ;;
  esac
  staged=0; [ -z "$4" ] || staged=$(du -sbc $4 2>/dev/null | tail -n1 | cut -f1)
  echo "$1$t$path$t$there$t${staged:-0}$t$row"
}
"""


class Space(FactBase[dict[str, Room]]):
    """Room for each of `needs`, by its name."""

    @staticmethod
    def default() -> dict[str, Room]:
        return {}

    def command(self, needs: tuple[Need, ...]) -> StringCommand:
        calls = []
        for need in needs:
            words = (need.what, need.path, need.present, need.staging)
            calls.append(f"room {' '.join(shlex.quote(word) for word in words)}")
        return StringCommand("sh", "-c", QuoteString("\n".join([_SCRIPT, *calls, "true"])))

    def process(self, output: list[str]) -> dict[str, Room]:
        found: dict[str, Room] = {}
        for line in output:
            try:
                what, path, there, staged, row = line.split("\t")
                total, free, mounted_at = row.split(" ", 2)
                found[what] = Room(
                    mounted_at, path, int(free), int(total), there == "yes", int(staged)
                )
            except ValueError as error:
                raise FactProcessError(f"not a line of free space: {line[:200]!r}") from error
        return found
