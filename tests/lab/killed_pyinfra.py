"""pyinfra that is killed at the boundary before one of its operations: `… FILE NUMBER ARGUMENTS`.

SIGKILL, as a laptop's lid or a lost terminal ends it: nothing is cleaned up. FILE gets the names
of the operations that were reached, one a line, so that a test knows where it was and when the
run had no further boundary. NUMBER counts from 1; 0 lets it run to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Run pyinfra's own command line with the boundary built in."""
    file, number = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv = ["pyinfra", *sys.argv[3:]]
    # pyinfra_cli patches the standard library for gevent; nothing may be imported before it.
    from pyinfra.api import operations  # noqa: PLC0415
    from pyinfra_cli.main import main as pyinfra  # type: ignore[import-untyped]  # noqa: PLC0415

    run = operations._run_single_op
    reached: list[str] = []

    def counted(state, op_hash):  # type: ignore[no-untyped-def]
        reached.append(", ".join(sorted(state.get_op_meta(op_hash).names)))
        file.write_text("\n".join(reached) + "\n")
        if len(reached) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(state, op_hash)

    operations._run_single_op = counted
    sys.exit(pyinfra())


if __name__ == "__main__":
    main()
