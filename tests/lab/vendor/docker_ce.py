"""A signed repository laid out as Docker's own: Debian's engine under the names of Docker's."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

from tests.lab.bare import ok
from tests.lab.vendor.repository import entry, signed
from vllm_cluster.lab.host import Host

FOLDER = "srv/docker"
_FIELDS = re.compile(r"^(Source|Conflicts|Replaces|Breaks|Provides|Recommends): .*\n", re.MULTILINE)


def build(host: Host, folder: Path) -> dict[str, object]:
    """Make it on a host's disk out of what Debian's archive has; the section that names it."""
    debs = f"/{FOLDER}/debian"
    ok(host, f"mkdir -p {debs} && cd {debs} && apt-get -qq update && "
             "apt-get -qq download docker.io containerd")  # fmt: skip
    there = host.place.root / FOLDER
    debian, pool = there / "debian", there / "pool"
    pool.mkdir()
    for old, new in (("containerd", "containerd.io"), ("docker.io", "docker-ce")):
        _renamed(next(debian.glob(f"{old}_*.deb")), folder / new, pool, old, new)
    _packed(folder / "cli", pool, "docker-ce-cli", (
        "Package: docker-ce-cli\nVersion: 1\nArchitecture: amd64\nMaintainer: nobody "
        "<nobody@example.com>\nDescription: nothing, docker-ce here brings the command\n"
    ))  # fmt: skip
    return _indexed(there, folder)


def _renamed(deb: Path, tree: Path, pool: Path, old: str, new: str) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tree)], check=True)
    control = _FIELDS.sub("", (tree / "DEBIAN" / "control").read_text())
    control = control.replace(f"Package: {old}\n", f"Package: {new}\nConflicts: {old}\n")
    control = re.sub(r"\bcontainerd \([^)]*\)", "containerd.io, docker-ce-cli", control)
    _packed(tree, pool, new, control)


def _packed(tree: Path, pool: Path, name: str, control: str) -> None:
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "DEBIAN" / "control").write_text(control)
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree)]
    subprocess.run([*command, str(pool / f"{name}.deb")], check=True, capture_output=True)


def _indexed(there: Path, folder: Path) -> dict[str, object]:
    suite = there / "dists" / "bookworm"
    index = suite / "stable" / "binary-amd64" / "Packages"
    index.parent.mkdir(parents=True)
    debs = sorted((there / "pool").glob("*.deb"))
    index.write_text("\n".join(entry(deb, f"pool/{deb.name}") for deb in debs))
    digest, size = hashlib.sha256(index.read_bytes()).hexdigest(), index.stat().st_size
    (suite / "Release").write_text(
        "Origin: Docker\nSuite: bookworm\nCodename: bookworm\nComponents: stable\n"
        "Architectures: amd64\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n"
        f"SHA256:\n {digest} {size} stable/binary-amd64/Packages\n"
    )
    fingerprint = signed(folder / "gnupg", suite)
    return {
        "uri": f"file:/{FOLDER}", "suite": "bookworm", "components": ["stable"],
        "key": f"file:/{FOLDER}/dists/bookworm/key.asc", "fingerprint": fingerprint,
    }  # fmt: skip
