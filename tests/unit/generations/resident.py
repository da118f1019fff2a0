"""Runs the hosts' program hundreds of times without starting Python for each.

    python -I resident.py PROGRAM     says its port, and serves until its standard input ends

A bash script stands for the program. It tells the process here its arguments, its environment and
its own process number. That process has compiled the program and imported what it imports; a fork
of it takes the script's directory and streams, and runs the program to its end as Python does.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import NoReturn

_VARIABLES = ("PATH", "GENERATIONS", "GENERATIONS_ROOT")
_SCRIPT = """#!/bin/bash
exec 8>&1 9<>/dev/tcp/127.0.0.1/{port}
printf '%s\\0' $# $$ {variables} "$@" >&9
read -r -u 9 code
exit "$code"
"""


@contextmanager
def started(program: Path, script: Path) -> Iterator[None]:
    """Have `script` stand for `program`."""
    with subprocess.Popen(
        [sys.executable, "-I", __file__, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={"PATH": os.environ["PATH"]},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline())
        variables = " ".join(f'"${name}"' for name in _VARIABLES)
        script.write_text(_SCRIPT.format(port=port, variables=variables))
        script.chmod(0o755)
        yield


def _serve(program: str) -> None:
    code = compile(Path(program).read_bytes(), program, "exec")
    runpy.run_path(program)  # imports; under another name than __main__ it does nothing
    answering: set[int] = set()
    gc.freeze()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            caller, _ = listening.accept()
            process = os.fork()
            if process == 0:
                listening.close()
                _answer(caller, code)
            caller.close()
            answering.add(process)
            answering -= {each for each in answering if os.waitpid(each, os.WNOHANG)[0]}
    for each in answering:
        os.waitpid(each, 0)


def _answer(caller: socket.socket, code: CodeType) -> NoReturn:
    """Run the program for one caller, tell how it ended, and end."""
    given = b""
    while not _whole(fields := given.split(b"\0")):
        given += caller.recv(1 << 16)
    process, *words = (os.fsdecode(field) for field in fields[1:-1])
    os.chdir(f"/proc/{process}/cwd")
    # The script's own 1 leads here until its printf has ended; 8 is what it was.
    for theirs, ours, mode in ((0, 0, os.O_RDONLY), (8, 1, os.O_WRONLY), (2, 2, os.O_WRONLY)):
        opened = os.open(f"/proc/{process}/fd/{theirs}", mode)
        os.dup2(opened, ours)
        os.close(opened)
    os.environ.clear()
    os.environ.update(zip(_VARIABLES, words, strict=False))
    sys.argv = [code.co_filename, *words[len(_VARIABLES) :]]
    status = _run(code)
    sys.stdout.flush()
    caller.sendall(f"{status}\n".encode())
    # Python's own way to the end visits, and so copies, every page that is shared with the parent.
    os._exit(0)


def _run(code: CodeType) -> int:
    """Exit status that Python would end with."""
    try:
        exec(code, {"__name__": "__main__", "__file__": code.co_filename})  # noqa: S102
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _whole(fields: list[bytes]) -> bool:
    """Whether all that the script sends has come; behind the last NUL there is nothing."""
    return len(fields) > 1 and len(fields) == int(fields[0]) + 2 + len(_VARIABLES) + 1


if __name__ == "__main__":
    _serve(sys.argv[1])
