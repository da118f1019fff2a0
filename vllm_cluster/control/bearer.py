"""Who runs what on which machine, for the lock."""

from __future__ import annotations

import getpass
import os
import secrets
import socket

from vllm_cluster.plan.run_lock import Bearer

# Hands the lock of a run on to the runs that it starts.
RUN_VARIABLE = "VLLM_CLUSTER_RUN"


def bearer(what: str) -> Bearer:
    """This process as the bearer of a lock, or the run that started it."""
    run = os.environ.get(RUN_VARIABLE) or secrets.token_hex(8)
    return Bearer(run, _operator(), socket.gethostname(), what)


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    # Who became root is the person to ask.
    return os.environ.get("SUDO_USER") or user
