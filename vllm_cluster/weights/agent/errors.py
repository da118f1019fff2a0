"""The one error of the agent: what went wrong, on which host, in which file."""

from __future__ import annotations

import errno
import socket

_own_name = socket.gethostname()


def name_this_host(name: str) -> None:
    """Let messages say the cluster's name for this host, not the kernel's."""
    global _own_name  # noqa: PLW0603  (a process is on one host)
    _own_name = name


class WeightsError(Exception):
    """A message a person can act on. `file` is a model's path, `host` the host at fault."""

    def __init__(self, reason: str, *, file: str | None = None, host: str | None = None) -> None:
        self.reason = reason
        self.file = file
        self.host = host or _own_name
        super().__init__(": ".join(part for part in (self.host, file, reason) if part))

    def as_dict(self) -> dict[str, str | None]:
        return {"host": self.host, "file": self.file, "reason": self.reason, "message": str(self)}


class AlreadyRunningError(WeightsError):
    """Another process of this host does this very job."""


class UnreadableError(WeightsError):
    """A disk or a server failed: of the model itself that says nothing."""


class StoppedError(WeightsError):
    """Asked to end, by a signal."""


def from_os_error(exc: OSError, *, file: str) -> UnreadableError:
    """Name the file; say in words what the disk could not do."""
    words = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the quota is used up",
        errno.EIO: "the disk reports an error (EIO); see the kernel log",
        errno.EROFS: "the file system is read-only",
    }
    reason = words.get(exc.errno or 0, exc.strerror or str(exc))
    return UnreadableError(reason, file=file)
