"""Repositories of packages, each trusted for one key that is known by its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Generator

from pyinfra.api.command import StringCommand
from pyinfra.context import host

from vllm_cluster.facts.apt import AptFact, AptState, FetchedKey
from vllm_cluster.operations import files, packages
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan import openpgp
from vllm_cluster.plan.apt import KEYRINGS, Repository, System, named_elsewhere

RepositoryFor = Callable[[System], Repository]


def repository(of: RepositoryFor, cluster: str) -> Generator[StringCommand, None, bool]:
    """Let apt use the repository that `of` names for the host's system.

    The host fetches the key, this machine judges it. False, after a refusal, when it is another.
    """
    state = host.get_fact(AptFact)
    wanted = of(state.system)
    theirs = named_elsewhere(wanted, state.sources, state.system.architecture)
    if theirs:
        host.log(f"{theirs} names {wanted.uri} already; it stays as it is")
        return True
    key = yield from _key(state, wanted)
    if key is None:
        return False
    yield from files.place._inner(
        wanted={
            KEYRINGS: Directory(),
            wanted.keyring: File(openpgp.armored(key), ours=False),
            wanted.sources: File(wanted.text(cluster)),
        }
    )
    return True


def _key(state: AptState, wanted: Repository) -> Generator[StringCommand, None, bytes | None]:
    have = state.keys.get(wanted.keyring)
    if have is not None and _is(have, wanted.fingerprint) == "":
        return have
    if not state.curl:
        yield from packages.install(["curl", "ca-certificates"])
    key = host.get_fact(FetchedKey, url=wanted.key_url)
    wrong = _is(key, wanted.fingerprint)
    if wrong:
        yield refuse(
            f"the key at {wanted.key_url} is not the one that signs {wanted.uri}: {wrong}, "
            f"not {wanted.fingerprint}; do not trust it before its owner says why"
        )
        return None
    return key


def _is(key: bytes, fingerprint: str) -> str:
    """Empty when `key` is the one key with this fingerprint, else what it is."""
    if not key:
        return "nothing came from there"
    try:
        found = openpgp.fingerprints(key)
    except ValueError as error:
        return str(error)
    return "" if found == [fingerprint] else ", ".join(found)
