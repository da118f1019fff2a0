"""The image from where it is to every host that lacks it: fetched once, then from host to host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vllm_cluster.image.archive import Archive, read
from vllm_cluster.image.hosts import Hosts
from vllm_cluster.image.sources import COPIES, Source, export, pull, seed, send
from vllm_cluster.image.want import Cargo, Image, cargo
from vllm_cluster.weights.fanout import Host, Model, connections_for, make_jobs, new_token, token_of
from vllm_cluster.weights.remote import Remote, RemoteError, spread


@dataclass(frozen=True)
class Wanted:
    """`image` as Docker shall know it on every host; it comes from `archive` or by `reference`."""

    image: str
    archive: Path | None
    reference: str | None


@dataclass(frozen=True)
class Terms:
    """The fan-out's port, a secret that all hosts share ("": none, so that a run which was
    interrupted cannot be joined), and what must stay free on a disk."""

    port: int
    secret: str = field(repr=False)
    reserve_bytes: int


def bring(
    wanted: Wanted,
    terms: Terms,
    remotes: Mapping[str, Remote],
    addresses: Mapping[str, str],
    receivers: tuple[str, ...],
) -> dict[str, str]:
    """Bring the image to the `receivers`; any of `remotes` may be asked for it.

    Returns why it failed, by host: a host that is not named has it. What was staged is removed
    from all hosts when none failed; else it stays, and the next run goes on from it.
    """
    hosts = Hosts(remotes, addresses, terms.reserve_bytes)
    run = _Run(wanted, terms, hosts)
    hosts.look(list(remotes), wanted.image, wanted.reference or "")
    lacking = [name for name in hosts.good(receivers) if not hosts.seen[name].id]
    try:
        if lacking:
            run.bring(lacking)
    except (RemoteError, ValueError, OSError) as error:
        hosts.fail(lacking, str(error))
    failed = {name: hosts.failed[name] for name in receivers if name in hosts.failed}
    if not failed:
        hosts.each(hosts.good(list(remotes)), hosts.clean)
    return failed | {name: hosts.failed[name] for name in receivers if name in hosts.failed}


@dataclass(frozen=True)
class _Run:
    wanted: Wanted
    terms: Terms
    hosts: Hosts

    def bring(self, lacking: list[str]) -> None:
        hosts, reference = self.hosts, self.wanted.reference or ""
        hosts.each(hosts.good(list(hosts.seen)), lambda name: hosts.remote(name).install())
        hosts.each([name for name in hosts.good(lacking) if hosts.seen[name].other], self._name)
        lacking = [name for name in hosts.good(lacking) if not hosts.seen[name].id]
        holders = [name for name in hosts.good(list(hosts.seen)) if hosts.seen[name].id]
        archive = read(self.wanted.archive) if self.wanted.archive else None
        if holders and lacking and (archive is not None or reference):
            holders = self._in_reach(holders, lacking)
        if not holders and archive is None and lacking:
            holders = [
                hosts.first(lacking, lambda name: pull(hosts, name, reference, self.wanted.image))
            ]
            lacking.remove(holders[0])
        if not lacking:
            return
        load = cargo(self._image(holders, archive), [hosts.seen[name] for name in lacking])
        if holders or archive is None:
            source = hosts.first(holders, lambda name: export(hosts, name, load))
        else:
            source = hosts.first(lacking, lambda name: send(hosts, name, load, archive))
        receivers = [name for name in hosts.good(lacking) if name != source.host]
        hosts.each(receivers, lambda name: hosts.check_room(name, COPIES * source.total_bytes))
        self._fan_out(source, hosts.good(receivers), load)
        hosts.each(hosts.good(lacking), partial(self._load, load))

    def _in_reach(self, holders: list[str], lacking: list[str]) -> list[str]:
        """Those that let all who lack it in. A spare host is in no description of the cluster that
        serves, whose firewalls drop it without a word; "refused" is an answer."""
        addresses, port = self.hosts.addresses, self.terms.port
        dial = "\n".join(
            f"{{ timeout 3 bash -c 'exec 3<>/dev/tcp/{addresses[name]}/{port}' 2>/dev/null; "
            f"[ $? -eq 124 ] || echo {shlex.quote(name)}; }} &"
            for name in holders
        )
        said = self.hosts.each(lacking, lambda n: self.hosts.remotes[n].shell(f"{dial}\nwait"))
        heard = [set(words.split()) for words in said.values()]
        return [name for name in holders if all(name in names for names in heard)]

    def _name(self, name: str) -> None:
        """One that was pulled by hand lacks only the name."""
        seen = self.hosts.seen[name]
        words = ("docker", "tag", seen.other, self.wanted.image)
        self.hosts.remotes[name].shell(shlex.join(words))
        self.hosts.seen[name] = replace(seen, id=seen.other)

    def _image(self, holders: list[str], archive: Archive | None) -> Image:
        """The wanted image; every holder must have the same one."""
        seen = self.hosts.seen
        if archive is not None:
            return Image(archive.id, archive.layers, archive.tags)
        ids = {name: seen[name].id for name in holders}
        if len(set(ids.values())) > 1:
            told = ", ".join(f"{name}: {image_id[:19]}" for name, image_id in ids.items())
            raise RemoteError(
                f"hosts have different images under {self.wanted.image} ({told}); remove the wrong "
                "one with `docker image rm`"
            )
        found = seen[holders[0]].image(ids[holders[0]])
        if found is None:
            raise RemoteError(f"{holders[0]}: Docker does not list the image it has")
        return Image(found.id, found.layers, (self.wanted.image,))

    def _fan_out(self, source: Source, receivers: list[str], load: Cargo) -> None:
        """Let the receivers have the tree; those that did not get it are out of the run."""
        hosts, model = self.hosts, Model(*load.name, source.identity)
        key = f"{model.model.replace('/', '--')}@{model.identity[:16]}"
        hosts.each(receivers, lambda name: seed(hosts, name, load, hosts.staging(name, key)))
        receivers = hosts.good(receivers)
        if not receivers:
            return
        secret = self.terms.secret
        members = {n: Host(n, hosts.addresses[n]) for n in (source.host, *receivers)}
        rates = [rate for name in members if (rate := hosts.seen[name].link_mbit)]
        jobs = make_jobs(
            model, [members[source.host]], [members[name] for name in receivers],
            token=token_of(secret, model.identity) if secret else new_token(),
            port=self.terms.port,
            options={
                "reserve_bytes": 0,  # check_room() saw to it
                "limits": {"connections": connections_for(min(rates, default=None))},
            },
        )  # fmt: skip
        remotes = {name: hosts.remote(name) for name in members}
        ends = spread(remotes, jobs, frozenset({source.host}))
        given = ends[source.host]
        for name in receivers:
            end = ends[name]
            if isinstance(end, RemoteError):
                also = f"; {given}" if isinstance(given, RemoteError) else ""
                hosts.fail([name], f"{end}{also}")

    def _load(self, load: Cargo, name: str) -> None:
        model, revision = load.name
        wish = {
            "key": f"{model.replace('/', '--')}.load", "me": name, "model": model,
            "revision": revision, "tags": load.image.tags,
        }  # fmt: skip
        end = self.hosts.detached(name, "image-load", "--wish", wish)
        if end["id"] != load.image.id:
            raise RemoteError(f"{name}: Docker has {end['id']}, wanted {load.image.id}")
