"""Debian packages, in one round trip when all are there."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterable

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.operations import locked_versions, owned

LOCK_WAIT_S = 300

# A fresh server's first boot runs apt by itself. apt-get waits for dpkg's lock where it is told
# to, but for the lock on its lists it does not (apt 2.6), nor does dpkg: so all of them are
# tried again for as long as the words are about a lock. A run that was cut off earlier leaves
# packages half installed, and apt does nothing before dpkg has finished them. A configuration file
# that somebody changed stays: dpkg would ask, and nobody answers.
SHELL = f"""
export DEBIAN_FRONTEND=noninteractive
# Ubuntu's needrestart would restart services of others after an installation of ours.
export NEEDRESTART_SUSPEND=1
patiently() {{
  end=$(( $(date +%s) + {LOCK_WAIT_S} ))
  until out=$("$@" 2>&1 </dev/null); do
    case $out in
      *"get lock"*|*"lock was locked"*|*"is locked by another process"*) ;;
      *) printf '%s\\n' "$out" >&2; return 1 ;;
    esac
    if [ "$(date +%s)" -ge "$end" ]; then printf '%s\\n' "$out" >&2; return 1; fi
    sleep 1
  done
}}
apt() {{
  patiently apt-get -o DPkg::Lock::Timeout={LOCK_WAIT_S} -o Dpkg::Options::=--force-confold \
    -qq -y "$@"
}}
settle() {{ [ -z "$(dpkg --audit)" ] || patiently dpkg --configure -a --force-confold; }}
"""


class Installed(FactBase[set[str]]):
    """Which of `packages` are installed. A name may be `a|b`: either serves."""

    @staticmethod
    def default() -> set[str]:
        return set()

    def command(self, packages: list[str]) -> StringCommand:
        names = " ".join(name for package in packages for name in package.split("|"))
        query = "dpkg-query --show --showformat='${db:Status-Status} ${Package}\\n'"
        return StringCommand(f"{query} {names} 2>/dev/null || true")

    def process(self, output: list[str]) -> set[str]:
        rows = (line.split(" ", 1) for line in output)
        return {row[1] for row in rows if row[0] == "installed" and len(row) == 2}


@operation()
def installed(packages: list[str]) -> Generator[StringCommand, None, None]:
    """Install what is missing of `packages`; of `a|b` the first, unless one is there."""
    have = host.get_fact(Installed, packages=packages)
    missing = [p.split("|")[0] for p in packages if not have & set(p.split("|"))]
    if not missing:
        host.noop(f"{', '.join(packages)} installed")
        return
    yield from install(missing)


def install(
    packages: Iterable[str],
    *,
    optional: Iterable[str] = (),
    options: str = "",
    before: str = "",
) -> Generator[StringCommand, None, None]:
    """Install `packages` (`NAME` or `NAME=VERSION`), and those of `optional` that apt knows.

    A source that fails to update is told and not fatal: it may be another's, and what is known
    may be enough. `before`: shell that records what else their installation changes.
    Under a lock each package of it comes in the locked version, or none does.
    """
    names = list(packages)
    host.log(f"installs {', '.join(names)}")
    yield StringCommand(f"{SHELL}settle; apt update || echo 'apt-get update failed' >&2")
    words = " ".join(shlex.quote(name) for name in names)
    also = " ".join(
        f"$(apt-cache show {shlex.quote(name)} >/dev/null 2>&1 && echo {shlex.quote(name)})"
        for name in optional
    )
    locked: dict[str, str] = host.data.get("locked_packages") or {}
    if locked:
        options = f"{locked_versions.OPTION} {options}"
    arguments = f"--no-install-recommends {options} {words} {also}"
    if locked:
        yield locked_versions.pinned(locked, f"install {arguments}")
    yield StringCommand(recorded(arguments, before))


def recorded(arguments: str, before: str = "") -> str:
    """Shell that lets apt install and records what is new then: ours, dependencies too.

    Also where apt fails: what is installed after that is somebody else's.
    """
    return (
        f"{SHELL}{owned.PACKAGES}set -- {arguments}\n"
        f'own_before install "$@" && {{ {before or ":"}\n}} && '
        '{ apt install "$@"; code=$?; own_after && exit $code; }'
    )


def mark(verb: str, names: Iterable[str], *, before: str = "") -> StringCommand:
    """`apt-mark VERB` (hold, unhold), which waits for dpkg's lock as little as dpkg does."""
    words = " ".join(shlex.quote(name) for name in names)
    return StringCommand(f"{SHELL}{before}\npatiently apt-mark {verb} {words}")
