"""Fill a Docker store once, by a real Docker, and give it to many hosts.

For tests of what comes after the image: tests of how an image gets there use empty stores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from vllm_cluster.lab import snapshots
from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.host import Host
from vllm_cluster.lab.lab import Lab
from vllm_cluster.lab.snapshots import Seed

_INSTALL = (
    "mkdir -p /etc/docker && cat > /etc/docker/daemon.json && apt-get -q update && "
    "DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends docker.io"
)


def seed_docker(
    lab: Lab,
    key: str,
    fill: Callable[[Host], None],
    *,
    hosts: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Give hosts (all, by default) a Docker store that `fill` has filled; reboots them.

    `fill` is called with a host whose Docker runs on an empty store, the first time that this
    `key` is used; it loads what it likes. The result is kept in the cache: a key that names
    what is loaded (an image's ID) is never filled twice. The hosts need no Docker yet, and
    their stores must be empty. Raises LabError otherwise, and what `fill` raises.
    """
    name = hashlib.sha256(json.dumps([lab.release, key]).encode()).hexdigest()[:16]
    seed = Seed(lab.layout.cache / "docker-seed" / f"{name}.btrfs")
    chosen = [lab.host(host) for host in hosts or lab.names]
    with seed.alone():
        if not seed.file.exists():
            _fill(lab, seed, fill, say)
        for host in chosen:
            host.power_off()
        with seed.mounted():
            for host in chosen:
                snapshots.give(host.place, seed)
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        list(pool.map(lambda host: host.power_on(), chosen))


def _fill(lab: Lab, seed: Seed, fill: Callable[[Host], None], say: Callable[[str], None]) -> None:
    """Make the seed with a lab of its own, under another name until it is whole."""
    new = Seed(seed.file.with_name(f"half-{seed.file.name}"))
    say(f"Docker store: filling it, once, into {seed.file}")
    own = Lab.up(1, name=f"seed-{seed.file.stem[:12]}", release=lab.release)
    try:
        host = own.hosts[0]
        host.power_off()
        new.make()
        with new.alone(), new.mounted():
            snapshots.give(host.place, new, source="")
        host.power_on()
        # on btrfs Docker would choose its btrfs driver; hosts find overlay2 and keep to it
        done = host.ssh(_INSTALL, stdin='{"storage-driver": "overlay2"}\n', timeout_s=600)
        if done.returncode != 0:
            raise LabError(f"{host.name}: Docker was not installed:\n{done.stdout}{done.stderr}")
        fill(host)
        host.power_off()
        with new.alone(), new.mounted():
            new.subvolume("snapshot", "-r", host.place.namespace, "seed")
    finally:
        own.down()
    new.file.rename(seed.file)
    new.at.rmdir()
    new.lock.unlink()
    say("Docker store: filled")
