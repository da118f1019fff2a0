"""Versions on a host that a lock holds: system, kernel, packages, the image's ID."""

from __future__ import annotations

import shlex

from vllm_cluster.plan import paths
from vllm_cluster.plan.pins import PACKAGES

# Every package by these patterns that is installed, as `package NAME<TAB>VERSION`.
QUERY = (
    "dpkg-query --show --showformat='${db:Status-Status} package ${Package}\\t${Version}\\n' "
    f"{' '.join(map(shlex.quote, PACKAGES))} 2>/dev/null | sed -n 's/^installed //p'"
)


def script(image: str) -> str:
    """The shell script that prints KEY, a tab and VALUE a line. `image` as Docker names it."""
    tool = paths.GENERATION_TOOL
    engine = "docker version --format '{{.Server.Version}}' 2>/dev/null"
    inspect = f"docker image inspect --format '{{{{.Id}}}}' {shlex.quote(image)} 2>/dev/null"
    return (
        'printf "os\\t%s\\n" "$(. /etc/os-release; echo "$PRETTY_NAME")"\n'
        'printf "kernel\\t%s\\n" "$(uname -r)"\n'
        f'printf "docker\\t%s\\n" "$({engine})"\n'
        f'printf "image\\t%s\\n" "$({inspect})"\n'
        # Of a failure its last words.
        f'printf "generations\\t%s\\n" "$([ ! -x {tool} ] || {tool} show 2>&1 | tail -n1)"\n'
        f"{QUERY}\n"
    )


def parse(output: list[str]) -> dict[str, str]:
    """Lines of the script by key."""
    rows = (line.partition("\t") for line in output if "\t" in line)
    return {key: value.strip() for key, _, value in rows}
