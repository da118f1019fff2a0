"""Names of the cluster's hosts."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.names import CLOUD_DROP_IN, NamesFact, NamesState
from vllm_cluster.operations import files, owned
from vllm_cluster.operations.files import File
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan.hosts_file import contradictions, hosts_text, own_aliases

_HOSTS = "/etc/hosts"


@operation()
def resolved(
    own: str, addresses: Mapping[str, str], drop_in: str, set_hostname: bool
) -> Generator[StringCommand, None, None]:
    """Let `addresses` (name -> fabric address) be what the names resolve to on this host.

    `drop_in` is what keeps cloud-init from writing /etc/hosts. Checked with getent at the end:
    what counts is the resolver's answer, not the file.
    """
    found = host.get_fact(NamesFact, names=list(addresses))
    try:
        old = found.hosts_file.decode()
    except UnicodeDecodeError as error:
        yield refuse(f"{_HOSTS} is not UTF-8 at byte {error.start}; mend it and run again")
        return
    names = [own] if set_hostname else [own, found.fqdn, found.hostname]
    words = _obstacle(own, names, addresses, found, old)
    if words:
        yield refuse(words)
        return
    if set_hostname and found.hostname != own:
        host.log(f"the host's name is {found.hostname}, not {own}")
        before = owned.first("hostname", own, found.hostname)
        yield StringCommand(before, "&& hostnamectl set-hostname", QuoteString(own))
    text = hosts_text(old, {*names} - {"", "localhost"}, addresses, {own: own_aliases(own, names)})
    wanted: dict[str, File | files.Directory] = {_HOSTS: File(text, ours=False)}
    if found.cloud:
        host.log(f"cloud-init writes {_HOSTS} at every boot, as {', '.join(found.cloud)} says")
        wanted[CLOUD_DROP_IN] = File(drop_in)
    yield from files.place._inner(wanted=wanted)
    if text != old or _wrong(addresses, found):
        for name, address in addresses.items():
            yield _check(name, address)


def _obstacle(
    own: str, names: list[str], addresses: Mapping[str, str], found: NamesState, old: str
) -> str:
    """Why this host cannot have these names; empty when it can."""
    if addresses[own] not in found.addresses:
        held = ", ".join(found.addresses)
        return f"no interface holds {addresses[own]}, the address of {own}; it has {held}"
    others = sorted({*names} & ({*addresses} - {own}))
    if others:
        return (
            f"{own} calls itself {others[0]}, which is another host of the cluster; "
            f"names.hostname: set, or `hostnamectl set-hostname {own}` there"
        )
    wrong = contradictions(old, addresses)
    if wrong:
        return f"{_HOSTS} contradicts the description: {'; '.join(wrong)}; remove that there"
    if found.instance_data:
        return (
            f"{', '.join(found.instance_data)} lets cloud-init write {_HOSTS} at every boot, and "
            "outranks every file in /etc/cloud; take manage_etc_hosts out of the instance's user "
            "data, or `touch /etc/cloud/cloud-init.disabled`, and run again"
        )
    return ""


def _wrong(addresses: Mapping[str, str], found: NamesState) -> bool:
    return any(found.resolves.get(name) != (address,) for name, address in addresses.items())


def _check(name: str, address: str) -> StringCommand:
    words = f"{name} resolves to $got, not to {address}; see hosts: in /etc/nsswitch.conf"
    return StringCommand(
        f'got=$(getent ahostsv4 {name} | cut -d" " -f1 | sort -u | tr "\\n" " "); '
        f'[ "$got" = "{address} " ] || {{ echo "{words}" >&2; exit 1; }}'
    )
