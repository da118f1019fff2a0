"""Names of the cluster's hosts."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.files import FileStates
from vllm_cluster.operations import files
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan.hosts_file import hosts_text

_HOSTS = "/etc/hosts"


class OwnNames(FactBase[list[str]]):
    """The host's own names (short and qualified), and addresses it holds: `NAME` or `@ADDRESS`."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self) -> StringCommand:
        return StringCommand(
            "hostname; hostname -f 2>/dev/null; "
            'ip -o -4 address show | awk \'{split($4, a, "/"); print "@" a[1]}\''
        )

    def process(self, output: list[str]) -> list[str]:
        return [line.strip() for line in output if line.strip()]


@operation()
def resolved(own: str, addresses: Mapping[str, str]) -> Generator[StringCommand, None, None]:
    """Let `addresses` (name -> fabric address) be what the names resolve to on this host."""
    names = host.get_fact(OwnNames)
    if f"@{addresses[own]}" not in names:
        held = ", ".join(name[1:] for name in names if name.startswith("@"))
        yield refuse(f"no interface holds {addresses[own]}, the address of {own}; it has {held}")
        return
    found = host.get_fact(FileStates, paths=[_HOSTS])[_HOSTS]
    old = (found.content or b"").decode(errors="surrogateescape")
    text = hosts_text(
        old, {own, *(n for n in names if n[0] != "@" and n != "localhost")}, addresses
    )
    yield from files.place._inner(wanted={_HOSTS: files.File(text, ours=False)})
