"""What a rebuild must reproduce, as a lock file holds it, and how something else differs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_cluster.plan import generations
from vllm_cluster.plan.alignment import Cell, Observed, Problem, Table

# Packages whose version decides how Ray and vLLM run, as `dpkg-query --show` takes patterns. The
# distribution's own programs beside them are the distribution's to keep safe.
PACKAGES = (
    "docker.io", "docker-ce", "docker-ce-cli", "containerd", "containerd.io", "runc",
    "nvidia-*", "libnvidia-*", "cuda-drivers*", "nftables", "rsync", "iperf3", "iputils-ping",
    "nfs-common", "nfs-kernel-server", "xfsprogs",
)  # fmt: skip
FIX = "If the change is meant: `vllm-cluster lock` (make lock), then run again."


@dataclass(frozen=True)
class HostPins:
    """One host: its system as /etc/os-release calls it, `uname -r`, versions by package."""

    os: str = ""
    kernel: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pins:
    """A lock file. `model` and `image` are flat mappings of texts; empty: not locked."""

    cluster: str = ""
    model: Mapping[str, str] = field(default_factory=dict)
    image: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, HostPins] = field(default_factory=dict)

    @classmethod
    def from_data(cls, data: Any) -> Pins:
        """What `to_data` made. Raises ValueError for anything else."""
        try:
            hosts = {
                str(name): HostPins(
                    str(told.get("os", "")), str(told.get("kernel", "")),
                    _texts(told.get("packages", {})),
                )
                for name, told in data.get("hosts", {}).items()
            }  # fmt: skip
            return cls(
                str(data.get("cluster", "")),
                _texts(data.get("model", {})),
                _texts(data.get("image", {})),
                hosts,
            )
        except (AttributeError, TypeError) as error:
            raise ValueError("not the mapping that `vllm-cluster lock` writes") from error

    def to_data(self) -> dict[str, Any]:
        """Plain data, sorted, for JSON."""
        hosts = {
            name: {"kernel": p.kernel, "os": p.os, "packages": dict(sorted(p.packages.items()))}
            for name, p in sorted(self.hosts.items())
        }
        return {
            "cluster": self.cluster,
            "hosts": hosts,
            "image": dict(sorted(self.image.items())),
            "model": dict(sorted(self.model.items())),
        }


@dataclass(frozen=True)
class Drift:
    """One thing that is not as it is locked."""

    key: str
    locked: str
    found: str

    def text(self) -> str:
        """For a person."""
        return f"{self.key}: locked {self.locked or 'nothing'}, found {self.found or 'nothing'}"


def declared_drift(locked: Pins, found: Pins) -> list[Drift]:
    """How the description, which names model and image, differs from the lock."""
    return [
        Drift(f"{section}.{key}", value, other.get(key, ""))
        for section, pinned, other in (
            ("model", locked.model, found.model),
            ("image", locked.image, found.image),
        )
        for key, value in pinned.items()
        # What cannot be known before a host is asked is compared there.
        if key in other and other[key] != value
    ]


def host_drift(locked: HostPins, found: HostPins) -> Iterator[Drift]:
    """How a host differs from the lock; packages that it has besides are nobody's drift."""
    if locked.os and locked.os != found.os:
        yield Drift("system", locked.os, found.os)
    if locked.kernel and locked.kernel != found.kernel:
        yield Drift("kernel", locked.kernel, found.kernel)
    for name, version in sorted(locked.packages.items()):
        if found.packages.get(name, "") != version:
            yield Drift(f"package {name}", version, found.packages.get(name, ""))


def image_drift(locked: Pins, found: Pins, values: Mapping[str, str]) -> Iterator[Drift]:
    """How a host's image, of its `values`, differs from the lock."""
    image_id = locked.image.get("id", "")
    # Another one of the whole cluster is the description's drift.
    if found.image.get("id", image_id) == image_id and values.get("image", "") != image_id:
        yield Drift("image.id", image_id, values.get("image", ""))


def changes(before: Pins, after: Pins) -> list[str]:
    """One line a value that differs between two lock files."""
    old, new = _flat(before.to_data()), _flat(after.to_data())
    return [
        f"{key}: {old.get(key, 'nothing')}, now {new.get(key, 'nothing')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def with_drift(
    table: Table, observed: Mapping[str, Observed | None], locked: Mapping[str, HostPins]
) -> Table:
    """The alignment's table with a red row for everything on a host that is not as locked."""
    rows, problems = dict(table.rows), list(table.problems)
    for name, seen in observed.items():
        if seen is None or name not in locked:
            continue
        for drift in host_drift(locked[name], seen_pins(seen.values)):
            title = f"{drift.key}, locked"
            rows.setdefault(title, {n: Cell("as locked") for n in observed if n in locked})
            rows[title][name] = Cell(drift.found or "none", "red")
            found, wanted = drift.found or "none", f"the locked {drift.locked}"
            problems.append(Problem(drift.key, (name,), found, wanted, FIX))
    return replace(table, rows=rows, problems=tuple(problems))


def seen_pins(values: Mapping[str, str]) -> HostPins:
    """Values of a host by the keys of the alignment: `os`, `kernel`, `package NAME`."""
    prefix = "package "
    packages = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
    return HostPins(values.get("os", ""), values.get("kernel", ""), packages)


def lacking(seen: Mapping[str, Mapping[str, str]], image: str) -> dict[str, list[str]]:
    """What hosts of these values get from a deploy and a lock would hold, in words by host.

    `image` as hosts call it. One that serves with another image lacks nothing: an upgrade under a
    lock begins with the lock. Nor does a standby that is ready: others serve, and without it.
    """
    kept = {name: _kept(values) for name, values in seen.items()}
    serving = [one.serving for one in kept.values() if one is not None and one.serving is not None]
    told = {}
    for name, values in seen.items():
        standby = bool(serving) and not any(name in record.hosts for record in serving)
        told[name] = _lacks(values, image, kept[name], standby=standby)
    return {name: words for name, words in told.items() if words}


def _lacks(
    values: Mapping[str, str], image: str, kept: generations.Kept | None, *, standby: bool
) -> list[str]:
    shown = values.get("generations", "")
    upgrade = kept is not None and kept.serving is not None and kept.serving.image != image
    told = {
        "Docker does not answer": not values.get("docker"),
        "the image is not there": not values.get("image") and not upgrade,
        "no deploy was there": not shown,
        f"its generations cannot be read ({shown[:200]})": kept is None,
        "no deploy has come to its end there": bool(shown) and kept is not None
        and kept.current is None and not standby,
    }  # fmt: skip
    return [words for words, true in told.items() if true]


def _kept(values: Mapping[str, str]) -> generations.Kept | None:
    """None where it cannot be read."""
    try:
        return generations.read(values.get("generations", ""))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _texts(data: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in data.items()}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
