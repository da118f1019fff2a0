"""The SSH keys under which a host is known, replaced knowingly."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A known_hosts file and the names under which a host stands in it."""

    file: Path
    names: tuple[str, ...]


def place(ssh_argv: list[str], port: int) -> Place:
    """Where OpenSSH looks for the key of the host that `ssh_argv` leads to, by `ssh -G`.

    Raises OSError without OpenSSH, ValueError where it does not know a file.
    """
    argv = [ssh_argv[0], "-G", *ssh_argv[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    file = Path(told["userknownhostsfile"].split()[0]).expanduser()
    names = dict.fromkeys([told.get("hostkeyalias") or ssh_argv[-1], told["hostname"]])
    return Place(file, tuple(n if port == 22 else f"[{n}]:{port}" for n in names))


def keys(place: Place) -> list[str]:
    """The keys under which the host is known, as `TYPE BASE64`."""
    return list(dict.fromkeys(key for _, key in _entries(place)))


def replace(place: Place, key: str) -> None:
    """Let the host be known under `key` (`TYPE BASE64`) alone; names beside it stay its names.

    `ssh-keygen` keeps the old file as `known_hosts.old`. Raises CalledProcessError with its words.
    """
    names = dict.fromkeys(place.names)
    for written, _ in _entries(place):
        # A hashed name tells nothing.
        names |= dict.fromkeys(n for n in written.split(",") if not n.startswith("|"))
    place.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        if place.file.exists():
            argv = ["ssh-keygen", "-R", name, "-f", str(place.file)]
            subprocess.run(argv, capture_output=True, text=True, check=True)
    with place.file.open("a", encoding="utf-8") as file:
        file.write(f"{','.join(names)} {key}\n")


def fingerprint(key: str) -> str:
    """`SHA256:…` of `TYPE BASE64`, as ssh-keygen prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _entries(place: Place) -> list[tuple[str, str]]:
    found = []
    if not place.file.exists():
        return []
    for name in place.names:
        argv = ["ssh-keygen", "-F", name, "-f", str(place.file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            words = line.split()
            if len(words) >= 3 and not line.startswith(("#", "@")):
                found.append((words[0], f"{words[1]} {words[2]}"))
    return found
