"""Secrets of the operator: from the environment, a file or a command, or made once and kept."""

from __future__ import annotations

import os
import secrets as random
import subprocess
from pathlib import Path

from vllm_cluster.spec.model import Cluster, SecretSource
from vllm_cluster.spec.problems import DescriptionError, Problem

_COMMAND_TIMEOUT_S = 60


def resolve(cluster: Cluster) -> dict[str, str]:
    """The values of `ray_token` and `api_key` (absent when `none`).

    Raises DescriptionError, naming where each one should have come from. Never shows a value.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name in ("ray_token", "api_key"):
        source = getattr(cluster.description.secrets, name)
        if source == "none":
            continue
        try:
            value = _value(cluster, name, source)
        except _MissingError as missing:
            problems.append(
                cluster.problem("secrets", name, found=missing.found, accepted=missing.accepted)
            )
            continue
        if value and value.isascii() and value.isprintable() and " " not in value:
            found[name] = value
        else:
            accepted = "printable ASCII without spaces, at least one character"
            problems.append(
                cluster.problem("secrets", name, found="an unusable value", accepted=accepted)
            )
    if problems:
        raise DescriptionError(cluster.file, problems)
    return found


def generated_file(cluster: Cluster, name: str) -> Path:
    """Where a generated secret is kept: beside the description, readable by its owner alone."""
    return cluster.file.parent / ".secrets" / cluster.description.cluster / name


class _MissingError(Exception):
    def __init__(self, found: str, accepted: str) -> None:
        super().__init__(found)
        self.found, self.accepted = found, accepted


def _value(cluster: Cluster, name: str, source: SecretSource | str) -> str:
    if isinstance(source, str):
        return _generated(generated_file(cluster, name))
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
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise _MissingError(f"{path}: {reason}", "a readable file with the secret alone") from None


def _command(line: str) -> str:
    try:
        # The operator's own words, so the operator's own shell.
        done = subprocess.run(  # noqa: S602
            line, shell=True, capture_output=True, text=True,
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


def _generated(path: Path) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _file(path)
    with os.fdopen(handle, "w") as file:
        value = random.token_hex(32)
        file.write(value + "\n")
    return value
