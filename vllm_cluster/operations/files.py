"""Files of ours on a host: all of a step through one operation, each in place with one rename."""

from __future__ import annotations

import difflib
import hashlib
import posixpath
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from vllm_cluster.facts.files import FileState, FileStates
from vllm_cluster.operations import owned
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan import paths

# Every file of ours says so; a file at its place that does not is somebody else's.
MARK = "Managed by vllm-cluster"


@dataclass(frozen=True)
class File:
    """A file as it shall be. `ours` is False for files that are merged, not owned."""

    body: str
    mode: str = "644"
    user: str = "root"
    group: str = "root"
    secret: bool = False
    ours: bool = True

    @property
    def sha256(self) -> str:
        """Digest of the content, lower-case hex."""
        return hashlib.sha256(self.body.encode()).hexdigest()


@dataclass(frozen=True)
class Directory:
    """A directory as it shall be; its content is left alone.

    `theirs`: made where it is missing, and otherwise left with the owner and mode that it has.
    """

    mode: str = "755"
    user: str = "root"
    group: str = "root"
    theirs: bool = False


@dataclass(frozen=True)
class Merged:
    """A file whose text follows from what is there (empty where there is none)."""

    text: Callable[[str], str]
    mode: str = "644"

    def on(self, found: FileState) -> File:
        """The file as it shall be where `found` is."""
        old = (found.content or b"").decode(errors="replace")
        return File(self.text(old), mode=self.mode, ours=False)


Wanted = Mapping[str, File | Directory | Merged]
Settled = Mapping[str, File | Directory]


@operation()
def place(wanted: Wanted | Callable[[], Wanted]) -> Generator[StringCommand, None, None]:
    """Bring every path of `wanted` to its state; owner and mode are right before a name appears.

    `wanted` may be asked for when the operation runs: what it says may follow from earlier ones.
    Refuses, on that host alone, where something else stands in the way.
    """
    wanted = wanted() if callable(wanted) else wanted
    have = read(wanted)
    shall: Settled = {
        path: item.on(have[path]) if isinstance(item, Merged) else item
        for path, item in wanted.items()
    }
    wrong = {path: _difference(item, have[path]) for path, item in shall.items()}
    wrong = {path: why for path, why in wrong.items() if why}
    if not wrong:
        host.noop(f"{len(wanted)} paths are as they shall be")
        return
    words = _all_foreign(shall, have)
    if words:
        yield refuse(words)
        return
    for path, why in wrong.items():
        host.log(f"{path}: {why}")
        _show_diff(path, shall[path], have[path])
    for path in wrong:
        yield from _commands(path, shall[path])


def obstacles(wanted: Settled) -> str:
    """Why `place` would refuse `wanted` on this host; empty where it would not."""
    return _all_foreign(wanted, read(wanted))


def read(wanted: Wanted) -> dict[str, FileState]:
    """What is at the paths of `wanted`; the content of secrets stays on the host."""
    closed = [p for p, item in wanted.items() if isinstance(item, File) and item.secret]
    paths = [path for path in wanted if path not in closed]
    return host.get_fact(FileStates, paths=paths, closed=closed)


def _difference(item: File | Directory, found: FileState) -> str:
    kind = "file" if isinstance(item, File) else "directory"
    if found.kind == "absent":
        return f"{kind} is missing"
    if found.kind != kind:
        return f"is a {found.kind}, not a {kind}"
    if isinstance(item, Directory) and item.theirs:
        return ""
    differs = []
    if isinstance(item, File) and found.sha256 != item.sha256:
        differs.append("content differs")
    if found.mode != item.mode:
        differs.append(f"mode is {found.mode}, not {item.mode}")
    if (found.user, found.group) != (item.user, item.group):
        differs.append(f"owner is {found.user}:{found.group}, not {item.user}:{item.group}")
    return ", ".join(differs)


def _all_foreign(wanted: Settled, have: Mapping[str, FileState]) -> str:
    found = (_foreign(path, item, have[path]) for path, item in wanted.items())
    return "; ".join(words for words in found if words)


def _foreign(path: str, item: File | Directory, found: FileState) -> str:
    kind = "file" if isinstance(item, File) else "directory"
    if found.kind not in {"absent", kind}:
        return f"{path} is a {found.kind} and shall be a {kind}; move it away and run again"
    if not isinstance(item, File) or not item.ours or found.content is None:
        return ""
    if MARK not in item.body or MARK.encode() in found.content or not found.content.strip():
        return ""
    return f"{path} exists and was not written by vllm-cluster; move it away and run again"


def _show_diff(path: str, item: File | Directory, found: FileState) -> None:
    if not getattr(state.config, "DIFF", False) or not isinstance(item, File) or item.secret:
        return
    old = (found.content or b"").decode(errors="replace").splitlines()
    lines = difflib.unified_diff(old, item.body.splitlines(), path, path, lineterm="")
    for line in lines:
        host.log(line)


def _commands(path: str, item: File | Directory) -> Generator[StringCommand, None, None]:
    target, owner = QuoteString(path), QuoteString(f"{item.user}:{item.group}")
    if isinstance(item, Directory):
        yield StringCommand(
            owned.FILES, "own_mode", target, "&& mkdir -p", target, "&& chown", owner, target,
            "&& chmod", item.mode, target,
        )  # fmt: skip
        return
    new = QuoteString(posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.new"))
    # The body travels as standard input: not on a command line, not through /tmp, never
    # readable by others. pyinfra ends it with a newline, as every text file ends.
    yield StringCommand(
        owned.FILES, "own_dirs", target, "&& mkdir -p", QuoteString(posixpath.dirname(path)), "&&",
        "umask 077 && cat >", new, "&& chown", owner, new, "&& chmod", item.mode, new,
        "&& sync", new, "&&", *_recorded(path, item, target, new), "&& mv -fT", new, target,
        _stdin=item.body,
    )  # fmt: skip


def _recorded(
    path: str, item: File, target: QuoteString, new: QuoteString
) -> Generator[str | QuoteString, None, None]:
    """What was there before, and what we bring: words of a command. Of a secret only its place."""
    # Our own directory goes as a whole, whatever is written there how often.
    if item.ours or path.startswith(f"{paths.CONFIG}/"):
        yield from ("own_file", target, QuoteString(MARK))
        if not item.secret:
            yield from ("&& own_wrote", target, new)
    else:
        yield from ("own_merge", target, new)
