"""Debian packages, in one round trip when all are there."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host

# A fresh server's first boot runs apt by itself; wait for it instead of failing on its lock.
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y"


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
    names = " ".join(missing)
    host.log(f"installs {names}")
    yield StringCommand(f"{_APT} update -qq")
    yield StringCommand(f"{_APT} install -qq --no-install-recommends {names}")
