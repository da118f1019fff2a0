"""Resource limits on a machine that may not raise them.

A real server's root raises any limit: `docker run --ulimit memlock=-1` is what RDMA needs, and
units say LimitNOFILE=1048576. On a machine without CAP_SYS_RESOURCE (a small virtual machine, a
container) the same command fails with EPERM. There the hosts get root's answer: raising a limit
above the hard one succeeds and leaves it at the hard one. `ulimit` inside shows the truth.

It works by seccomp user notification (seccomp_unotify(2)): calls that set one of three limits
stop until a thread of the host's supervisor has looked at them. All others run undisturbed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import queue
import resource
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24
_RAISED = (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)
_INFINITY = (1 << 64) - 1

_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_CONTINUE = 1
# struct seccomp_notif: id, pid, flags, data (nr, arch, instruction, six arguments)
_NOTICE = struct.Struct("=QII iIQ 6Q")
_ANSWER = struct.Struct("=Q q i I")  # struct seccomp_notif_resp: id, value, error, flags
_RECEIVE = 0xC0002100 | _NOTICE.size << 16  # _IOWR('!', 0, struct seccomp_notif)
_SEND = 0xC0002101 | _ANSWER.size << 16


@dataclass(frozen=True)
class _Abi:
    """System call numbers of an architecture (asm/unistd.h, linux/audit.h)."""

    audit: int
    seccomp: int
    prlimit64: int
    setrlimit: int


_ABIS = {
    "x86_64": _Abi(0xC000003E, 317, 302, 160),
    "aarch64": _Abi(0xC00000B7, 277, 261, 164),
}


def has_capability(number: int, pid: int | str = "self") -> bool:
    """Whether a process has a capability in effect."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def needed() -> bool:
    """Whether this machine's root cannot raise limits."""
    return not has_capability(_CAP_SYS_RESOURCE)


def _filter(abi: _Abi) -> bytes:
    """The BPF program: notify on setrlimit, and on prlimit64 with a new limit, of the three.

    Offsets are those of struct seccomp_data: number 0, architecture 4, arguments from 16 on.
    """
    load, equal, jump, give = 0x20, 0x15, 0x05, 0x06
    # operation, operand, label when equal, label when not; "" is the next line
    program: list[tuple[str, int, int, str, str]] = [
        ("", load, 4, "", ""),
        ("", equal, abi.audit, "", "allow"),
        ("", load, 0, "", ""),
        ("", equal, abi.setrlimit, "setrlimit", ""),
        ("", equal, abi.prlimit64, "", "allow"),
        ("", load, 32, "", ""),  # the new limit's address, low half; with none it only asks
        ("", equal, 0, "", "prlimit64"),
        ("", load, 36, "", ""),  # high half
        ("", equal, 0, "allow", ""),
        ("prlimit64", load, 24, "", ""),  # which limit
        ("", jump, 1, "", ""),
        ("setrlimit", load, 16, "", ""),  # which limit
        *(("", equal, limit, "notify", "") for limit in _RAISED),
        ("allow", give, _ALLOW, "", ""),
        ("notify", give, _NOTIFY, "", ""),
    ]
    place = {line[0]: number for number, line in enumerate(program) if line[0]}
    code = b""
    for number, (_, operation, operand, yes, no) in enumerate(program):
        skip = [place[label] - number - 1 if label else 0 for label in (yes, no)]
        code += struct.pack("=HBBI", operation, *skip, operand)
    return code


def _install(abi: _Abi) -> int:
    """Put the filter on this thread and all it starts; the descriptor to listen on."""
    code = _filter(abi)
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: the number of instructions, padding, their address
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(abi.seccomp, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
    return int(descriptor)


def _decide(abi: _Abi, pid: int, number: int, arguments: tuple[int, ...]) -> bool:
    """Carry a call out in the caller's place; False when the kernel is to do it itself.

    Only what the kernel would refuse to a caller whom a real server obeys is carried out: one
    with CAP_SYS_ADMIN, which stands for the full root that is missing one capability here.
    """
    if not has_capability(_CAP_SYS_ADMIN, pid):
        return False
    own = number == abi.setrlimit or arguments[0] == 0
    kind, new = arguments[:2] if number == abi.setrlimit else arguments[1:3]
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(new)
        soft, hard = struct.unpack("=QQ", memory.read(16))
        old = resource.prlimit(pid, kind)
        most = _INFINITY if old[1] == resource.RLIM_INFINITY else old[1]
        if hard <= most:
            return False
        if own:
            resource.prlimit(pid, kind, (min(soft, most), most))
        # another process's number is one of the host's, unknown here: it keeps what it has,
        # which it inherited from a parent with the same hard limit
        if number == abi.prlimit64 and arguments[3]:
            memory.seek(arguments[3])
            memory.write(struct.pack("=QQ", old[0] & _INFINITY, most))
    return True


def _serve(abi: _Abi, descriptor: int) -> None:
    while True:
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(descriptor, _RECEIVE, notice)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):  # the caller was killed meanwhile
                continue
            raise
        ident, pid, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        try:
            done = _decide(abi, pid, number, tuple(arguments))
        except (OSError, ValueError, struct.error) as error:
            print(f"limits: process {pid}: left to the kernel: {error}", flush=True)
            done = False
        answer = _ANSWER.pack(ident, 0, 0, 0 if done else _CONTINUE)
        try:
            fcntl.ioctl(descriptor, _SEND, answer)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def emulate() -> None:
    """From now on every child of this thread may raise its limits, or thinks so.

    Does nothing on a machine whose root can raise limits. Raises OSError where the kernel has
    no seccomp notifications (before Linux 5.5) and for an architecture without numbers here.
    """
    if not needed():
        return
    abi = _ABIS.get(platform.machine())
    if abi is None:
        raise OSError(errno.ENOSYS, f"no system call numbers for {platform.machine()}")
    found: queue.Queue[int] = queue.Queue()
    # started before the filter is there, so that its own calls do not wait for itself
    threading.Thread(target=lambda: _serve(abi, found.get()), daemon=True).start()
    found.put(_install(abi))
