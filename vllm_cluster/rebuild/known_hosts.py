"""The SSH keys under which a host is known, replaced knowingly."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.control import written

# What `ssh-keygen -F` says before each line that it found.
_FOUND = re.compile(r"# Host .* found: line (\d+)")
_PATTERN = re.compile(r"[*?!]")


@dataclass(frozen=True)
class Place:
    """A known_hosts file and the names under which a host stands in it."""

    file: Path
    names: tuple[str, ...]


def place(ssh_argv: list[str], port: int) -> Place:
    """Where OpenSSH looks for the key of the host that `ssh_argv` leads to, by `ssh -G`.

    Raises OSError without OpenSSH, ValueError where it does not know a file that keeps keys.
    """
    argv = [ssh_argv[0], "-G", *ssh_argv[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    name = told["userknownhostsfile"].split()[0]
    file = Path(name).expanduser()
    if name == "none" or (file.exists() and not file.is_file()):
        raise ValueError(
            f"UserKnownHostsFile {name} names no file that keeps keys; accepted: a regular file, "
            "by ssh.known_hosts_file or in the configuration of ssh"
        )
    names = dict.fromkeys([told.get("hostkeyalias") or ssh_argv[-1], told["hostname"]])
    return Place(file, tuple(n if port == 22 else f"[{n}]:{port}" for n in names))


def keys(place: Place) -> list[str]:
    """The keys under which the host is known, as `TYPE BASE64`."""
    return list(dict.fromkeys(entry.key for entry in _entries(place)))


def replace(place: Place, key: str) -> None:
    """Let the host be known under `key` (`TYPE BASE64`) alone; names beside it stay its names.

    Patterns stay as they are, for the other hosts that they name. The old file is kept as
    `known_hosts.old`. Raises OSError.
    """
    names = dict.fromkeys(place.names)
    for entry in _entries(place):
        # A hashed name tells nothing.
        if entry.by_name:
            names |= dict.fromkeys(n for n in entry.names if not n.startswith("|"))
    found = _entries(Place(place.file, tuple(names)))
    of_host = {entry.line: entry for entry in found if entry.by_name}
    place.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, old = place.file.resolve(), b""
    if file.exists():
        old = file.read_bytes()
        shutil.copy2(file, file.with_name(f"{file.name}.old"))
    lines = _without(old, of_host)
    lines.append(f"{','.join(names)} {key}".encode())
    written.replace(file, b"".join(line + b"\n" for line in lines))
    if old:
        shutil.copymode(file.with_name(f"{file.name}.old"), file)


def fingerprint(key: str) -> str:
    """`SHA256:…` of `TYPE BASE64`, as ssh-keygen prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _without(text: bytes, of_host: Mapping[int, _Entry]) -> list[bytes]:
    """The lines, those of the host with their patterns alone or not at all."""
    lines = []
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n") if text else [], 1):
        if number not in of_host:
            lines.append(line)
        elif of_host[number].patterns:
            patterns = ",".join(of_host[number].patterns).encode()
            lines.append(b" ".join([patterns, *line.split(maxsplit=1)[1:]]))
    return lines


@dataclass(frozen=True)
class _Entry:
    """A line of the file, by its number, that is of the host and is no marker's.

    `by_name`: not by a pattern alone, beside which may stand the names of others.
    """

    line: int
    hosts: tuple[str, ...]
    key: str
    by_name: bool

    @property
    def names(self) -> list[str]:
        """Whose line it is."""
        return [name for name in self.hosts if not _PATTERN.search(name)]

    @property
    def patterns(self) -> list[str]:
        """Names of more hosts than one, or of none."""
        return [name for name in self.hosts if _PATTERN.search(name)]


def _entries(place: Place) -> list[_Entry]:
    found = []
    if not place.file.exists():
        return []
    for name in place.names:
        argv = ["ssh-keygen", "-F", name, "-f", str(place.file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        number = 0
        for line in done.stdout.splitlines():
            told, words = _FOUND.match(line), line.split()
            if told:
                number = int(told[1])
            elif len(words) >= 3 and not line.startswith(("#", "@")):
                hosts = tuple(words[0].split(","))
                by_name = words[0].startswith("|") or name.lower() in words[0].lower().split(",")
                found.append(_Entry(number, hosts, f"{words[1]} {words[2]}", by_name))
    return found
