"""Names of the labs that tests make: labs are the machine's, so checkouts must not share names."""

from __future__ import annotations

import os


def lab_name(name: str) -> str:
    """`name` after LAB_PREFIX of the environment, which lets checkouts test side by side."""
    return os.environ.get("LAB_PREFIX", "") + name
