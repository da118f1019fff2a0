"""Secrets of the operator: from the environment, a file or a command, or made once and kept."""

from __future__ import annotations

import os
import secrets as random
import stat
import subprocess
from pathlib import Path

from vllm_cluster.spec.model import Cluster, SecretSource
from vllm_cluster.spec.problems import DescriptionError, Problem

# What hosts need. The hub's token is none of them: it stays where weights are downloaded.
ON_HOSTS = ("ray_token", "api_key")
HUB_TOKEN = "hub_token"  # noqa: S105  a key of the description
_COMMAND_TIMEOUT_S = 60


def resolve(cluster: Cluster, *, make: bool = True) -> dict[str, str]:
    """The values of `ray_token` and `api_key` (absent when `none`).

    `make`: False makes nothing; a generated one that is not there yet is absent.
    Raises DescriptionError, naming where each one should have come from. Never shows a value.
    """
    return _resolve(cluster, ON_HOSTS, make=make)


def described(cluster: Cluster) -> list[str]:
    """Which secrets of the hosts the description has, whatever they come from."""
    return [name for name in ON_HOSTS if getattr(cluster.description.secrets, name) != "none"]


def hub_token(cluster: Cluster) -> str | None:
    """The token for the model hub; None when `none`.

    Read only when something is downloaded, so that a deploy needs no token of a hub.
    Raises DescriptionError as `resolve` does.
    """
    return _resolve(cluster, (HUB_TOKEN,)).get(HUB_TOKEN)


def rotate(cluster: Cluster, names: tuple[str, ...]) -> list[Path]:
    """Make new values of generated secrets; the next deploy brings them to every host.

    Returns the files that hold them. Raises DescriptionError, before anything is made, for a
    secret that comes from elsewhere: a new value of it belongs there.
    """
    problems = []
    for name in names:
        if getattr(cluster.description.secrets, name) != "generate":
            accepted = "generate; where it comes from elsewhere, change it there and deploy"
            found = "a secret that is not generated"
            problems.append(cluster.problem("secrets", name, found=found, accepted=accepted))
    if problems:
        raise DescriptionError(cluster.file, problems)
    written = []
    for name in names:
        try:
            written.append(_write(generated_file(cluster, name), replace=True))
        except _MissingError as missing:
            problem = cluster.problem(
                "secrets", name, found=missing.found, accepted=missing.accepted
            )
            raise DescriptionError(cluster.file, [problem]) from None
    return written


def generated_file(cluster: Cluster, name: str) -> Path:
    """Where a generated secret is kept: beside the description, readable by its owner alone."""
    return cluster.file.parent / ".secrets" / cluster.description.cluster / name


class _MissingError(Exception):
    def __init__(self, found: str, accepted: str) -> None:
        super().__init__(found)
        self.found, self.accepted = found, accepted


def _resolve(cluster: Cluster, names: tuple[str, ...], *, make: bool = True) -> dict[str, str]:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name in names:
        source = getattr(cluster.description.secrets, name)
        if source == "none" or (source == "generate" and not make and not _made(cluster, name)):
            continue
        try:
            found[name] = _usable(_value(cluster, name, source))
        except _MissingError as missing:
            problem = cluster.problem(
                "secrets", name, found=missing.found, accepted=missing.accepted
            )
            problems.append(problem)
    if problems:
        raise DescriptionError(cluster.file, problems)
    return found


def _made(cluster: Cluster, name: str) -> bool:
    try:
        return generated_file(cluster, name).exists()
    except OSError:
        return True  # reading it says why it cannot be read


def _usable(value: str) -> str:
    # It travels in HTTP headers and environment variables, where the rest would be cut or read.
    if value and value.isascii() and value.isprintable() and " " not in value:
        return value
    accepted = "printable ASCII without spaces, at least one character"
    raise _MissingError("an unusable value", accepted)


def _value(cluster: Cluster, name: str, source: SecretSource | str) -> str:
    if isinstance(source, str):
        return _file(_write(generated_file(cluster, name), replace=False))
    if source.env is not None:
        value = os.environ.get(source.env, "")
        if not value:
            raise _MissingError(
                f"no variable {source.env} in the environment", f"export {source.env}"
            )
        return value
    if source.file is not None:
        return _file(cluster.local(source.file))
    return _command(source.command or "")


def _file(path: Path) -> str:
    try:
        if path.stat().st_mode & stat.S_IROTH:
            found = f"{path}, which every user of this machine can read"
            raise _MissingError(found, f"a file of yours alone: `chmod 600 {path}`")
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise _MissingError(f"{path}: {reason}", "a readable file with the secret alone") from None


def _command(line: str) -> str:
    try:
        # The operator's own words, so the operator's own shell.
        done = subprocess.run(  # noqa: S602
            line, shell=True, capture_output=True, text=True, errors="replace",
            timeout=_COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        found = f"`{line}` still running after {_COMMAND_TIMEOUT_S} s"
        raise _MissingError(found, "a command that prints the secret") from None
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or ["no words"]
        found = f"`{line}` ended with {done.returncode}: {words[0]}"
        raise _MissingError(found, "a command that prints the secret and ends with 0")
    return done.stdout.strip()


def _write(path: Path, *, replace: bool) -> Path:
    """A new random value at `path`, whole or not at all; one that is there stays, or goes.

    Two runs that begin at once must come to one value: the first link wins.
    """
    try:
        return _written(path, replace=replace)
    except OSError as error:
        found = f"{error.filename or path}: {error.strerror}"
        accepted = f"{path.parent.parent}, a directory of yours that can be written to"
        raise _MissingError(found, accepted) from None


def _written(path: Path, *, replace: bool) -> Path:
    if path.exists() and not replace:
        return path
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.{random.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(random.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    if replace:
        new.replace(path)
        return path
    try:
        path.hardlink_to(new)
    except FileExistsError:
        return path
    finally:
        new.unlink()
    return path
