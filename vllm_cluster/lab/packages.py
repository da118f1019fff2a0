"""What the lab needs of the machine, and its own package sources, read from its apt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vllm_cluster.lab.errors import LabError
from vllm_cluster.lab.proc import run

PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "nft": "nftables",
    "socat": "socat",
    "ip": "iproute2",
    "tc": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "losetup": "mount",
    "btrfs": "btrfs-progs",
    "mkfs.btrfs": "btrfs-progs",
    "mke2fs": "e2fsprogs",
    "curl": "curl",
    "rsync": "rsync",  # what a deploy sends the model with
}
"""Program -> the Debian package that brings it."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def missing_packages() -> list[str]:
    """The Debian packages that the lab needs and this machine lacks, sorted."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if not KEYRING.exists():
        missing.add("debian-archive-keyring")
    return sorted(missing)


def install(packages: list[str], say: Callable[[str], None]) -> None:
    """apt-get install, after saying so. Raises LabError where there is no apt or it fails."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise LabError(f"this machine has no apt-get; install what brings these: {names}")
    say(f"installing on this machine: {names}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = [["update"], ["install", "--yes", "--no-install-recommends", *packages]]
    for step in steps:
        argv = ["apt-get", "--quiet", *step]
        done = subprocess.run(argv, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)} failed:\n{done.stderr.strip()}")


def require_root_on_linux() -> None:
    """Refuse where the lab cannot work, before anything is made; complete root's PATH.

    `su` without `-` keeps a user's PATH, and that has no /usr/sbin on Debian.
    """
    if not sys.platform.startswith("linux"):
        raise LabError("the lab makes hosts out of Linux namespaces: it runs on Linux alone")
    if os.geteuid() != 0:
        raise LabError("the lab mounts file systems and makes namespaces: run it as root")
    path = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join(path + [d for d in ("/usr/sbin", "/sbin") if d not in path])


@dataclass(frozen=True)
class Source:
    """One apt source: where it is, which suite, which components."""

    uri: str
    suite: str
    components: str = "main"

    @property
    def plain_uri(self) -> str:
        """The address the hosts use: http, so that the proxy in between can keep files."""
        parts = urlsplit(self.uri)
        return f"http://{parts.netloc}{parts.path}"


def _machine_codename() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME":
            return value.strip('"')
    return ""


def _real_uri(uri: str) -> str:
    """apt's `mirror+file:` names a list of mirrors; take its first."""
    if not uri.startswith("mirror+file:"):
        return uri
    path = Path("/" + uri.removeprefix("mirror+file:").lstrip("/"))
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            return line.split()[0]
    raise LabError(f"{path}: no mirror in it")


def debian_sources(release: str) -> list[Source]:
    """The apt sources of a Debian release, from this machine's own apt configuration.

    VLLM_CLUSTER_DEBIAN_MIRROR names others: the archive's address and, after a space, that of
    the security archive. Raises LabError when neither tells.
    """
    named = os.environ.get("VLLM_CLUSTER_DEBIAN_MIRROR", "").split()
    if named:
        sources = [Source(named[0], release), Source(named[0], f"{release}-updates")]
        return sources + [Source(uri, f"{release}-security") for uri in named[1:2]]
    code = _machine_codename()
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    said = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]).stdout
    found: list[Source] = []
    for line in said.splitlines():
        uri, suite, component, origin = line.split("|")
        # before the first `apt-get update` apt does not know whose archive it is
        debian = origin == "Debian" or origin.startswith("$(")
        ours = suite in (code, f"{code}-updates", f"{code}-security") and component == "main"
        source = Source(_real_uri(uri), release + suite.removeprefix(code))
        if debian and ours and source not in found:
            found.append(source)
    if release not in {source.suite for source in found}:
        raise LabError(
            "this machine's apt names no Debian archive: "
            "give its address in VLLM_CLUSTER_DEBIAN_MIRROR"
        )
    return found


def date_options() -> dict[str, str]:
    """What this machine's apt is told about dates; hosts have its clock, so they need it too."""
    return {name: value for name, value in _acquire_options() if name.count("::") == 1}


def download_options() -> list[str]:
    """How this machine's apt gets at its archives (proxies, certificates, dates), as options.

    mmdebstrap starts from an empty configuration and would go without them.
    """
    return [f'{name} "{value}"' for name, value in _acquire_options()]


def _acquire_options() -> list[tuple[str, str]]:
    wanted = ("Check-Valid-Until", "Check-Date", "ForceIPv4", "Retries", "http::", "https::")
    said = run(["apt-config", "dump", "--format", "%f %v%n", "Acquire"]).stdout
    pairs = [line.partition(" ") for line in said.splitlines()]
    known = tuple(f"Acquire::{name}" for name in wanted)
    # no value: a group's own line; a list's members end in "::" and mean nothing by themselves
    return [(n, v) for n, _, v in pairs if v and n.startswith(known) and not n.endswith("::")]
