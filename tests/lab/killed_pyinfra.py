"""pyinfra that is killed at the boundary before one of its operations: `… FILE NUMBER ARGUMENTS`.

SIGKILL, as a lost terminal ends it: nothing is cleaned up. With BOUNDARY_SIGNAL=SIGSTOP in the
environment it falls silent there, as a laptop whose lid is closed. FILE gets the names
of the operations that were reached, one a line, so that a test knows where it was and when the
run had no further boundary. NUMBER counts from 1; 0 lets it run to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run pyinfra's own command line with the boundary built in."""
    file, number = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv = ["pyinfra", *sys.argv[3:]]
    # The first import of all: it patches the standard library for gevent.
    command_line = import_module("pyinfra_cli.main")
    operations = import_module("pyinfra.api.operations")

    run = operations._run_single_op
    reached: list[str] = []

    def counted(state, op_hash):  # type: ignore[no-untyped-def]
        reached.append(", ".join(sorted(state.get_op_meta(op_hash).names)))
        file.write_text("\n".join(reached) + "\n")
        if len(reached) == number:
            os.kill(os.getpid(), signal.Signals[os.environ.get("BOUNDARY_SIGNAL", "SIGKILL")])
        return run(state, op_hash)

    operations._run_single_op = counted  # type: ignore[attr-defined]
    sys.exit(command_line.main())


if __name__ == "__main__":
    main()
