"""The state of many files in one round trip."""

from __future__ import annotations

import base64
import binascii
import shlex
from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

# One line a path: kind mode user group sha256 content(base64, or -) path. No Python is needed
# on the host; the path comes last since it may hold spaces.
_SCRIPT = r"""
state() {
  if [ -L "$2" ]; then echo "link - - - - - $2"
  elif [ -d "$2" ]; then echo "directory $(stat -c '%a %U %G' "$2") - - $2"
  elif [ -f "$2" ]; then
    if [ "$1" = open ]; then content=$(base64 -w0 < "$2"); else content=; fi
    sum=$(sha256sum < "$2") || return 1
    echo "file $(stat -c '%a %U %G' "$2") ${sum%% *} ${content:--} $2"
  elif [ -e "$2" ]; then echo "other - - - - - $2"
  else echo "absent - - - - - $2"; fi
}
"""


@dataclass(frozen=True)
class FileState:
    """What is at a path. `content` is None for anything but a file, and for closed files."""

    kind: str
    mode: str
    user: str
    group: str
    sha256: str
    content: bytes | None


class FileStates(FactBase[dict[str, FileState]]):
    """State of each of `paths`, with content; of each of `closed` without (secrets)."""

    @staticmethod
    def default() -> dict[str, FileState]:
        return {}

    def command(self, paths: list[str], closed: list[str] | None = None) -> StringCommand:
        calls = [("open", path) for path in paths] + [("closed", path) for path in closed or []]
        lines = "\n".join(f"state {how} {shlex.quote(path)}" for how, path in calls)
        return StringCommand("sh", "-c", QuoteString(_SCRIPT + lines))

    def process(self, output: list[str]) -> dict[str, FileState]:
        return dict(_row(line) for line in output if line)


def _row(line: str) -> tuple[str, FileState]:
    parts = line.split(" ", 6)
    if len(parts) != 7:
        raise FactProcessError(f"not a file's state: {line[:200]!r}")
    kind, mode, user, group, digest, content, path = parts
    try:
        data = base64.b64decode(content, validate=True) if content != "-" else None
    except binascii.Error as error:
        raise FactProcessError(f"{path}: content is not base64: {error}") from error
    if kind == "file" and data is None and digest == _EMPTY:
        data = b""
    return path, FileState(kind, mode, user, group, digest, data)


_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
