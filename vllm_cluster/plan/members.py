"""Which hosts belong to the cluster, as every host of it keeps it, and which have left.

A host that is taken out of the description is not reached by any run after that, and goes on
running what it ran. The others remember it until it was cleaned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_ABOUT = (
    "Managed by vllm-cluster. The hosts of this cluster, and those that left it, by SSH address."
)


@dataclass(frozen=True)
class Members:
    """Name -> the address by which SSH reaches the host."""

    cluster: str
    hosts: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The file."""
        values = {"cluster": self.cluster, "hosts": dict(self.hosts), "left": dict(self.left)}
        return json.dumps({"about": _ABOUT, **values}, indent=2, sort_keys=True) + "\n"

    def without(self, names: Iterable[str]) -> Members:
        """The same once these hosts, which had left, were cleaned."""
        gone = set(names)
        hosts, left = (
            {name: address for name, address in part.items() if name not in gone}
            for part in (self.hosts, self.left)
        )
        return Members(self.cluster, hosts, left)


def read(text: str) -> Members | None:
    """What the file says; None where it is not such a file."""
    try:
        found = json.loads(text)
        hosts, left = ({str(k): str(v) for k, v in found[key].items()} for key in ("hosts", "left"))
        return Members(str(found["cluster"]), hosts, left)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def after(old: str, cluster: str, hosts: Mapping[str, str]) -> Members:
    """What is to be kept now that `hosts` are the cluster's, and `old` was the file until now.

    Who is among them by name or address has not left; who was and is not, has. The members of
    another cluster, from which this host came, are none of this one's; one all of whose hosts are
    here is this one under an older name.
    """
    before = read(old) or Members(cluster)
    here = set(hosts.values())
    if before.cluster != cluster and not here.issuperset(before.hosts.values()):
        before = Members(cluster)
    gone = {**before.left, **before.hosts}
    left = {n: a for n, a in gone.items() if n not in hosts and a not in here}
    return Members(cluster, hosts, left)
